/** All words of the pages. A second language is a constant of the type `Words`. */

import type { Action, ApiError } from "./api";
import type { State } from "./state";

type ErrorText = (error: ApiError) => string;

export interface Words {
  language: string;
  product: string;
  login: Record<"title" | "user" | "password" | "submit" | "busy" | "ended" | "insecure" | "insecureNext", string>;
  header: Record<"theme" | "system" | "light" | "dark" | "logout" | "logoutBusy" | "logoutFailed" | "place", string>;
  list: Record<"title" | "search" | "loading" | "noVms" | "noVmsNext" | "noPages" | "noPagesNext" | "noMatch" | "showAll" | "showLess", string> & {
    count(shown: number, all: number, filtered: boolean): string;
    consoleUser(user: string): string;
  };
  states: Record<State, string>;
  reset: Record<"warning" | "confirm" | "cancel", string> & { title(name: string): string };
  actions: Record<Action, { label: string; busy: string; sent(name: string): string; notPermitted: string }>;
  connection: Record<"none" | "again", string> & { lost(time: string): string };
  retry: string;
  /** Errors by reason; `other` is for each reason that is not listed. */
  errors: Record<string, ErrorText> & { other: ErrorText };
}

/** The text of the server, as a sentence. */
const sentence = (text: string | undefined) => (text ? ` ${text.replace(/[.\s]*$/, ".")}` : "");

export const english: Words = {
  language: "en",
  product: "vm-operator",
  login: {
    title: "Log in",
    user: "User",
    password: "Password",
    submit: "Log in",
    busy: "Logging in…",
    ended: "Your login has ended. Log in again.",
    insecure: "This page needs HTTPS.",
    insecureNext: "Open it by https:// or at localhost.",
  },
  header: {
    theme: "Theme",
    system: "System",
    light: "Light",
    dark: "Dark",
    logout: "Log out",
    logoutBusy: "Logging out…",
    logoutFailed: "You are still logged in.",
    place: "Cluster and namespace",
  },
  list: {
    title: "Virtual machines",
    search: "Search by name",
    loading: "Loading the list…",
    noVms: "No virtual machines.",
    noVmsNext: "Ask your administrator for permissions on a VM: spec.permissions.",
    noPages: "None of your roles permits a page of the console.",
    noPagesNext: "Ask your administrator for a role with a page: conletTypesByRole.",
    noMatch: "No VM has a name that matches the search.",
    showAll: "Show all",
    showLess: "Show less",
    count: (shown, all, filtered) => (filtered ? `${shown} of ${all}` : all === 1 ? "1 VM" : `${all} VMs`),
    consoleUser: (user) => `Console used by ${user}`,
  },
  states: { Running: "Running", Starting: "Starting", Stopping: "Stopping", Stopped: "Stopped", Problem: "Problem" },
  actions: {
    start: {
      label: "Start",
      busy: "Starting…",
      sent: (name) => `Start of ${name} requested.`,
      notPermitted: "You have no permission to start this VM. Ask your administrator.",
    },
    stop: {
      label: "Stop",
      busy: "Stopping…",
      sent: (name) => `Stop of ${name} requested.`,
      notPermitted: "You have no permission to stop this VM. Ask your administrator.",
    },
    reset: {
      label: "Reset",
      busy: "Resetting…",
      sent: (name) => `Reset of ${name} requested.`,
      notPermitted: "You have no permission to reset this VM. Ask your administrator.",
    },
  },
  reset: {
    title: (name) => `Reset ${name}?`,
    warning: "The guest starts again at once, as after a reset button. It loses all data that it has not saved.",
    confirm: "Reset",
    cancel: "Cancel",
  },
  connection: {
    none: "No connection to the server. The page tries again.",
    lost: (time) => `Connection lost. The list shows the state of ${time}.`,
    again: "Connect again",
  },
  retry: "Try again",
  errors: {
    LoginRejected: () => "User or password is wrong. Correct them and try again.",
    TooManyAttempts: (e) =>
      e.retryAfterSeconds
        ? `Too many attempts. Try again in ${e.retryAfterSeconds} ${e.retryAfterSeconds === 1 ? "second" : "seconds"}.`
        : "Too many attempts. Wait a minute and try again.",
    Busy: () => "The server is busy. Try again in a few seconds.",
    OtherOrigin: () => "The server rejects requests from this address. Open the page at the address that your administrator named.",
    InvalidRequest: (e) => `The server rejected the request.${sentence(e.message)} Reload the page and try again.`,
    NotPermitted: (e) => `You have no permission for this action.${sentence(e.message)} Ask your administrator.`,
    NotFound: () => "This VM no longer exists, or you have lost the permission to see it. Ask your administrator.",
    Conflict: () => "Another client changed the VM at the same time. Check its state and try again.",
    ApiServer: (e) => `The Kubernetes API server reports an error.${sentence(e.message)} Try again, or ask your administrator.`,
    NoAnswer: () => "The server does not answer. Check the network connection and try again.",
    NotVisible: () => "The server accepted the request, but the list does not show the change. Reload the page.",
    other: (e) => `The server reports ${e.reason}.${sentence(e.message)} Try again, or ask your administrator.`,
  },
};

export const words: Words = english;

export function errorText(error: ApiError): string {
  const text = Object.hasOwn(words.errors, error.reason) ? words.errors[error.reason] : undefined;
  return (text ?? words.errors.other)(error);
}
