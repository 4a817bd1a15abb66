/** All words of the pages. A second language is a constant of the type `Words`. */

import type { Action, ApiError, Assignment, SizeField } from "./api";
import type { Layout } from "./keys";
import type { bulk, Column, RANGES } from "./overview";
import type { ListName, PoolAction, State } from "./state";

type ErrorText = (error: ApiError) => string;

/** Texts of a page that shows a device of a VM. */
export interface DeviceText {
  label: string;
  /** For a header without room. */
  shortLabel: string;
  connecting: string;
  starting(name: string): string;
  /** Texts by the reason why the device is not connected; `other` is for each reason that is not listed. */
  reasons: Record<string, (user: string) => string> & { other(reason: string): string };
}

type ScreenWord =
  | "ctrlAltDel"
  | "keys"
  | "heldKeys"
  | "functionKeys"
  | "otherKeys"
  | "keyboard"
  | "view"
  | "fit"
  | "actualSize"
  | "resizeGuest"
  | "move"
  | "screenshot"
  | "takeOver"
  | "mayNotTake";

type SerialWord =
  | "noOutput"
  | "keys"
  | "paste"
  | "pasteTitle"
  | "pasteText"
  | "pasteHint"
  | "pasteSubmit"
  | "cancel"
  | "search"
  | "searchNext"
  | "searchPrevious"
  | "searchClose"
  | "noMatch"
  | "view"
  | "fontSize"
  | "fit"
  | "standard"
  | "sendSize"
  | "sendSizeHint"
  | "screenReader"
  | "reset"
  | "save";

/** Texts of a dialog that asks before an action. */
export type Confirmation = Record<"warning" | "confirm" | "cancel", string> & { title(name: string): string };

type ViewerWord = "label" | "busy" | "next" | "install" | "host" | "port" | "password" | "copy" | "copied" | "expired" | "again" | "close";

export interface Words {
  language: string;
  product: string;
  login: Record<"title" | "user" | "password" | "submit" | "busy" | "ended" | "or" | "noWay" | "insecure" | "insecureNext" | "licenses", string> & {
    by(provider: string): string;
  };
  header: Record<"theme" | "system" | "light" | "dark" | "logout" | "logoutBusy" | "logoutFailed" | "place" | "lists" | ListName, string>;
  list: Record<"title" | "heading" | "search" | "loading" | "noVms" | "noVmsNext" | "noVmsYet" | "noVmsYetNext" | "noPages" | "noPagesNext" | "noMatch" | "noMatchAtAll" | "showAll" | "showLess", string> & {
    count(shown: number, all: number, filtered: boolean): string;
    consoleUser(user: string): string;
    /** The badge of a VM that the user has by a pool. */
    pool(name: string): string;
  };
  pools: {
    title: string;
    free(count: number): string;
    waiting(count: number): string;
    assignment(assignment: Assignment): string;
    assigned(vm: string, expires: string | null, isExpired: boolean): string;
    show(vm: string): string;
    actions: Record<PoolAction, { label: string; busy: string; sent(pool: string): string }>;
    ending: string;
    ended: string;
    giveBack: Confirmation;
    /** Errors by reason, besides those of `errors`. */
    reasons: Record<string, string>;
  };
  overview: Record<"title" | "filter" | "totals" | "running" | "range" | "none" | "noneNext" | "noMatch" | "notPossible" | "action", string> & {
    columns: Record<Column, string>;
    ranges: Record<(typeof RANGES)[number], string>;
    of(part: string, all: string): string;
    /** The description of a course for screen readers. */
    course(label: string, lowest: string, highest: string, begin: string): string;
    highest(amount: string): string;
    vms(count: number): string;
    select(name: string): string;
    selectAll(count: number): string;
    selected(count: number): string;
    many: Record<"start" | "stop", (count: number) => string>;
    stop: Confirmation;
    bulk(state: NonNullable<typeof bulk.value>): string;
    more(count: number): string;
    usedFrom(address: string): string;
  };
  details: Record<"close" | "loading" | "system" | "usedFrom" | "permissions" | "noPermissions" | "none" | "disks" | "networks" | "addresses" | "cd" | "emptyCd" | "events" | "noEvents" | "warning", string> & {
    used(amount: string, limit: string): string;
    disk(name: string, size: string): string;
    network(name: string, bridge: string | undefined): string;
    times(count: number): string;
  };
  size: Record<"title" | "submit" | "busy" | "sent" | "hint", string> & {
    fields: Record<SizeField, string>;
    limit(limit: string): string;
    /** Errors of a field by reason. */
    reasons: Record<string, (limit: string) => string>;
  };
  /** Values of `may`. */
  rights: Record<string, string>;
  states: Record<State, string>;
  reset: Confirmation;
  actions: Record<Action, { label: string; busy: string; sent(name: string): string; notPermitted: string }>;
  more: string;
  device: Record<"disabled" | "back" | "toolbar" | "leave" | "leaveShort" | "fullScreen" | "endFullScreen" | "again", string> & {
    stopped(name: string): string;
  };
  screen: Record<ScreenWord, string> &
    DeviceText & {
      canvas(name: string): string;
      takeOverNext(user: string): string;
      lastPicture(time: string): string;
      key(name: string): string;
    };
  serial: Record<SerialWord, string> &
    DeviceText & {
      terminal(name: string): string;
      matches(index: number, count: number): string;
    };
  viewer: Record<ViewerWord, string> & {
    title(name: string): string;
    saved(name: string): string;
    valid(seconds: number): string;
    copyOf(label: string): string;
    /** Errors by reason, besides those of `errors`. */
    reasons: Record<string, (user: string) => string>;
  };
  paste: Record<"open" | "title" | "text" | "layout" | "hint" | "submit" | "submitKnown" | "cancel" | "stop", string> & {
    layouts: Record<Layout, string>;
    unknown(characters: string[]): string;
    typing(count: number, all: number): string;
    ended(count: number, all: number): string;
  };
  connection: Record<"none" | "again", string> & { lost(time: string): string };
  retry: string;
  /** Errors by reason; `other` is for each reason that is not listed. */
  errors: Record<string, ErrorText> & { other: ErrorText };
}

/** Texts of the states of an assignment. */
const assignmentText = ({ state, vm }: Assignment) => {
  switch (state) {
    case "Pending":
    case "Waiting":
      return "You wait for a VM.";
    case "Binding":
      return vm ? `You get the VM ${vm} in a moment.` : "You get a VM in a moment.";
    case "Assigned":
      return vm ? `You have the VM ${vm}.` : "You have a VM.";
    case "NameMismatch":
      return "Your assignment has a wrong name, so you get no VM by it.";
    case "Ending":
      return "Your assignment ends.";
    default:
      return `Your assignment has the state ${state}.`;
  }
};

/** Reasons that differ only in the name of the device. */
const deviceReasons = (device: string): DeviceText["reasons"] => ({
  Lost: () => "Connection lost. The page tries again.",
  Ended: () => `The VM has closed the ${device}. The page tries again.`,
  Unreachable: () => "The pod of the VM does not answer. The page tries again.",
  ApiServer: () => "The Kubernetes API server reports an error. The page tries again.",
  NotRunning: () => "The VM does not run yet. The page tries again.",
  LoginPending: () => `The desktop of the guest has not logged you in yet. The ${device} opens as soon as it has.`,
  InUse: (user) => `${user} uses the ${device}.`,
  Assigned: (user) => `This VM belongs to ${user} at present. Request a VM in the list, or ask your administrator.`,
  NotFound: () => "This VM does not exist, or you have no permission to see it. Ask your administrator.",
  NotPermitted: () => `You have no permission to use the ${device} of this VM. Ask your administrator.`,
  RightLost: () => `You have lost the permission to use the ${device} of this VM. Ask your administrator.`,
  other: (reason) => `The server reports ${reason}. Try again, or ask your administrator.`,
});

const vmsText = (count: number) => (count === 1 ? "1 VM" : `${count} VMs`);

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
    or: "or",
    noWay: "Nobody can log in, because no user and no provider is configured. Ask your administrator.",
    by: (provider) => `Log in by ${provider}`,
    insecure: "This page needs HTTPS.",
    insecureNext: "Open it by https:// or at localhost.",
    licenses: "Licenses of third parties",
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
    lists: "Lists of VMs",
    portal: "My VMs",
    overview: "Overview",
  },
  list: {
    title: "Virtual machines",
    heading: "VMs",
    search: "Search by name",
    loading: "Loading the list…",
    noVms: "No virtual machines.",
    noVmsNext: "Ask your administrator for permissions on a VM: spec.permissions.",
    noVmsYet: "You have no VM at present.",
    noVmsYetNext: "A VM that you get from a pool appears here.",
    noPages: "None of your roles permits a page of the console.",
    noPagesNext: "Ask your administrator for a role with a page: conletTypesByRole.",
    noMatch: "No VM has a name that matches the search.",
    noMatchAtAll: "No pool and no VM has a name that matches the search.",
    showAll: "Show all",
    showLess: "Show less",
    count: (shown, all, filtered) => (filtered ? `${shown} of ${all}` : vmsText(all)),
    consoleUser: (user) => `Console used by ${user}`,
    pool: (name) => `Pool ${name}`,
  },
  pools: {
    title: "Pools",
    free: (count) => (count === 0 ? "No VM is free. You can wait in the queue." : count === 1 ? "1 VM is free." : `${count} VMs are free.`),
    waiting: (count) => (count === 1 ? "1 user waits" : `${count} users wait`),
    assignment: assignmentText,
    assigned: (vm, expires, isExpired) =>
      !expires
        ? `You have the VM ${vm} while you use it.`
        : isExpired
          ? `You have the VM ${vm}. Your time ended at ${expires}: another user can get it.`
          : `You have the VM ${vm} until ${expires}.`,
    show: (vm) => `Show ${vm}`,
    actions: {
      get: { label: "Get a VM", busy: "Requesting…", sent: (pool) => `VM of the pool ${pool} requested.` },
      leave: { label: "Leave the queue", busy: "Leaving…", sent: (pool) => `You leave the queue of the pool ${pool}.` },
      giveBack: { label: "Give back", busy: "Giving back…", sent: (pool) => `You give back the VM of the pool ${pool}.` },
    },
    ending: "Wait until your assignment has ended.",
    ended: "Your assignment has ended.",
    giveBack: {
      title: (name) => `Give back ${name}?`,
      warning: "Other users can then get this VM. Work that you have not saved can be lost.",
      confirm: "Give back",
      cancel: "Cancel",
    },
    reasons: {
      NotFound: "This pool no longer exists, or you have lost the permission to use it. Ask your administrator.",
      Conflict: "Your previous assignment is just ending. Try again in a few seconds.",
      AssignmentEnded: "The time of your assignment is over, or somebody deleted it.",
    },
  },
  overview: {
    title: "Overview",
    filter: "Filter",
    totals: "Totals",
    running: "VMs that run",
    range: "Time range",
    ranges: { hour: "Last hour", day: "Last day" },
    none: "The namespace has no VM.",
    noneNext: "A VM that somebody creates appears here.",
    noMatch: "No VM matches the filter.",
    notPossible: "Select VMs for which this action is possible.",
    action: "Action",
    columns: {
      name: "Name",
      state: "State",
      since: "Since",
      cpus: "CPUs",
      ram: "Memory",
      node: "Node",
      user: "Used by",
      assignedTo: "Assigned to",
    },
    of: (part, all) => `${part} of ${all}`,
    course: (label, lowest, highest, begin) => `${label} since ${begin}: between ${lowest} and ${highest}`,
    highest: (amount) => `at most ${amount}`,
    vms: vmsText,
    select: (name) => `Select ${name}`,
    selectAll: (count) => `Select all ${count}`,
    selected: (count) => `${count} selected`,
    many: {
      start: (count) => `Start ${vmsText(count)}`,
      stop: (count) => `Stop ${vmsText(count)}`,
    },
    stop: {
      title: (vms) => `Stop ${vms}?`,
      warning: "Their guests shut down. After a time limit, the VMs are powered off.",
      confirm: "Stop",
      cancel: "Cancel",
    },
    bulk: ({ action, all, left, failed }) => {
      const done = `${action === "start" ? "Start" : "Stop"} of ${all - left - failed} of ${all} requested.`;
      return failed === 0 ? done : `${done} ${failed} rejected, with the reason in the row.`;
    },
    more: (count) => `Show more of ${count} further VMs`,
    usedFrom: (address) => `From ${address}`,
  },
  details: {
    close: "Close",
    loading: "Loading the details…",
    system: "System",
    usedFrom: "Used from",
    permissions: "You may",
    noPermissions: "only look at it",
    none: "none",
    disks: "Disks",
    networks: "Networks",
    addresses: "Addresses",
    cd: "CD drive",
    emptyCd: "empty",
    events: "Events",
    noEvents: "No events. Kubernetes deletes events after an hour by default.",
    warning: "Warning",
    used: (amount, limit) => `${amount} in use, at most ${limit}`,
    disk: (name, size) => (size ? `${name}, ${size}` : name),
    network: (name, bridge) => (bridge ? `${name}, bridge ${bridge}` : `${name}, behind the address of the pod`),
    times: (count) => `${count} times`,
  },
  size: {
    title: "Size",
    submit: "Change size",
    busy: "Changing…",
    sent: "Requested. The guest gets the change at once if it supports this.",
    hint: "A stopped VM gets the change at its next start.",
    fields: { cpus: "CPUs", ram: "Memory" },
    limit: (limit) => `At most ${limit}`,
    reasons: {
      AboveLimit: (limit) => `Enter at most ${limit}.`,
      BelowLimit: (limit) => `Enter at least ${limit}.`,
      NotANumber: () => "Enter a whole number.",
      NotASize: () => "Enter a size such as 2 GiB or 512 MiB.",
    },
  },
  rights: {
    start: "start",
    stop: "stop",
    reset: "reset",
    accessConsole: "use the consoles",
    takeConsole: "take over the screen",
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
  more: "More actions",
  device: {
    disabled: "The VM does not run. Start it first.",
    back: "List of VMs",
    toolbar: "Tools",
    leave: "Ctrl+Alt+Shift moves the keyboard from the guest to this toolbar. Tab moves it back.",
    leaveShort: "Ctrl+Alt+Shift: leave the guest",
    fullScreen: "Full screen",
    endFullScreen: "End full screen",
    again: "Connect again",
    stopped: (name) => `${name} is stopped.`,
  },
  screen: {
    label: "Screen",
    shortLabel: "Screen",
    connecting: "Connecting to the screen…",
    ctrlAltDel: "Ctrl-Alt-Del",
    keys: "Keys",
    heldKeys: "Hold down",
    functionKeys: "Ctrl-Alt-",
    otherKeys: "Press",
    keyboard: "Keyboard",
    view: "View",
    fit: "Fit to window",
    actualSize: "Actual size",
    resizeGuest: "Adapt guest to window",
    move: "Move picture",
    screenshot: "Save picture",
    takeOver: "Take over",
    mayNotTake: "You have no permission to take it over.",
    canvas: (name) => `Screen of ${name}. Ctrl+Alt+Shift moves the keyboard to the toolbar.`,
    takeOverNext: (user) => `If you take over, ${user} loses the connection.`,
    lastPicture: (time) => `Picture of ${time}`,
    starting: (name) => `${name} does not run yet. The screen opens as soon as it runs.`,
    key: (name) => `Key ${name}`,
    reasons: {
      ...deviceReasons("screen"),
      Busy: () => "Too many screens are open. The page tries again.",
      TakenOver: (user) => `${user} has taken over the screen.`,
      Replaced: () => "You have opened this screen in another window.",
      Unsupported: () => "This VM has no screen for the browser. Stop it and start it again, or ask your administrator.",
    },
  },
  serial: {
    label: "Serial console",
    shortLabel: "Serial",
    connecting: "Connecting to the serial console…",
    noOutput: "No output yet. Press Enter.",
    keys: "Keys",
    paste: "Paste",
    pasteTitle: "Paste text",
    pasteText: "Text",
    pasteHint: "The guest gets the text as if you typed it. Each line end is the Enter key.",
    pasteSubmit: "Send",
    cancel: "Cancel",
    search: "Search",
    searchNext: "Next match",
    searchPrevious: "Previous match",
    searchClose: "Close the search",
    noMatch: "No match",
    view: "View",
    fontSize: "Font size",
    fit: "Fit to window",
    standard: "80 × 24 characters",
    sendSize: "Set size in shell",
    sendSizeHint: "Types the command stty with the size of this terminal. The guest does not know the size otherwise.",
    screenReader: "Support a screen reader",
    reset: "Clear and reset",
    save: "Save text",
    terminal: (name) => `Serial console of ${name}. Ctrl+Alt+Shift moves the keyboard to the toolbar.`,
    matches: (index, count) => `${index} of ${count}`,
    starting: (name) => `${name} does not run yet. The serial console opens as soon as it runs.`,
    reasons: {
      ...deviceReasons("serial console"),
      Busy: () => "Too many serial consoles are open. The page tries again.",
      InUse: (user) => `${user} uses this VM.`,
      Unsupported: () => "This VM has no serial console for the browser. Stop it and start it again, or ask your administrator.",
    },
  },
  viewer: {
    label: "Open in viewer",
    title: (name) => `Open ${name} in a viewer`,
    busy: "Requesting the file…",
    saved: (name) => `The browser saves ${name}.`,
    next: "Open this file with virt-viewer.",
    install: "To install it: package virt-viewer on Linux, or the installer from virt-manager.org on Windows.",
    host: "Host",
    port: "Port",
    password: "Password",
    copy: "Copy",
    copied: "Copied",
    copyOf: (label) => `Copy ${label.toLowerCase()}`,
    valid: (seconds) => `The password is valid for ${seconds} s.`,
    expired: "The password has expired. Request the file again.",
    again: "Request again",
    close: "Close",
    reasons: {
      NotPermitted: () => "You have no permission to use the screen of this VM. Ask your administrator.",
      NotRunning: () => "The VM does not run. Start it first.",
      LoginPending: () => "The desktop of the guest has not logged you in yet. Try again in a few seconds.",
      Assigned: (user) => `This VM belongs to ${user} at present. Request a VM in the list, or ask your administrator.`,
      InUse: (user) => `${user} uses the screen.`,
      Unsupported: () => "This VM does not support a viewer. Stop it and start it again, or ask your administrator.",
      NoDisplay: () => "This VM has no SPICE display. Use the screen in the browser, or ask your administrator.",
      PasswordNotSet: () => "QEMU has not set the password of the display. Try again, or ask your administrator.",
      Unreachable: () => "The pod of the VM does not answer. Try again in a few seconds.",
    },
  },
  paste: {
    open: "Paste",
    title: "Paste text as key strokes",
    text: "Text",
    layout: "Keyboard layout of the guest",
    hint: "The guest gets the text as if you typed it. Each line end is the Enter key.",
    submit: "Type",
    submitKnown: "Type without them",
    cancel: "Close",
    stop: "Stop",
    layouts: { us: "US", de: "German", deNoDeadKeys: "German without dead keys" },
    unknown: (characters) => `The layout has no key for: ${characters.join(" ")}`,
    typing: (count, all) => `${count} of ${all} characters typed…`,
    ended: (count, all) => `Ended after ${count} of ${all} characters.`,
  },
  connection: {
    none: "No connection to the server. The page tries again.",
    lost: (time) => `Connection lost. The page shows the state of ${time}.`,
    again: "Connect again",
  },
  retry: "Try again",
  errors: {
    LoginRejected: () => "User or password is wrong. Correct them and try again.",
    LoginNotBegun: () => "The login took too long, or began in another browser. Log in again.",
    LoginDenied: () => "The login was canceled or rejected. Log in again, or ask your administrator.",
    ProviderFailed: () => "The provider of the login reports an error. Try again, or ask your administrator to read the log of the console.",
    NotAuthorized: () => "You have no role that permits a login here. Ask your administrator.",
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

/** The value of a key that comes from the server. */
export const textFor = <T>(texts: Record<string, T>, key: string): T | undefined => (Object.hasOwn(texts, key) ? texts[key] : undefined);

export const errorText = (error: ApiError): string => (textFor(words.errors, error.reason) ?? words.errors.other)(error);
export const poolErrorText = (error: ApiError): string => textFor(words.pools.reasons, error.reason) ?? errorText(error);
