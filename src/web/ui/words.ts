/** All words of the pages. `words-de.ts` has those of the second language. */

import type { ApiError, Assignment } from "./api";
import type { bulk } from "./overview";
import { language } from "./settings";
import { numbersOf, sentence } from "./texts";
import { german } from "./words-de";

const { number, counted } = numbersOf("en");

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
      return "Your assignment has a wrong name, so you get no VM by it. Ask your administrator.";
    case "Ending":
      return "Your assignment ends.";
    default:
      return `Your assignment has the state ${state}.`;
  }
};

/** Reasons that differ only in the name of the device. */
const deviceReasons = (device: string) => ({
  Lost: () => "Connection lost. The page tries again.",
  Ended: () => `The VM has closed the ${device}. The page tries again.`,
  Unreachable: () => "The pod of the VM does not answer. The page tries again.",
  ApiServer: () => "The Kubernetes API server does not answer, or reports an error. The page tries again.",
  NotRunning: () => "The VM does not run yet. The page tries again.",
  LoginPending: () => `The desktop of the guest has not logged you in yet. The ${device} opens as soon as it has.`,
  InUse: (user: string) => `${user} uses the ${device}.`,
  Assigned: (user: string) => `This VM belongs to ${user} at present. Request a VM in the list, or ask your administrator.`,
  NotFound: () => "This VM does not exist, or you have no permission to see it. Ask your administrator.",
  NotPermitted: () => `You have no permission to use the ${device} of this VM. Ask your administrator.`,
  RightLost: () => `You have lost the permission to use the ${device} of this VM. Ask your administrator.`,
  other: (reason: string) => `The server reports ${reason}. Try again, or ask your administrator.`,
});

const ORDINALS = new Intl.PluralRules("en", { type: "ordinal" });
const ordinal = (rank: number) => `${number(rank)}${{ zero: "th", one: "st", two: "nd", few: "rd", many: "th", other: "th" }[ORDINALS.select(rank)]}`;

const vmsText = (count: number) => counted(count, "VM", "VMs");

export const english = {
  language: "en",
  languageName: "English",
  languageLabel: "Language",
  product: "vm-operator",
  /** The name of a key, as keyboards have it. */
  keyName: (name: string) => name,
  login: {
    title: "Log in",
    user: "User",
    password: "Password",
    submit: "Log in",
    busy: "Logging in…",
    ended: "Your login has ended. Log in again.",
    or: "or",
    noWay: "Nobody can log in, because no user and no provider is configured. Ask your administrator.",
    by: (provider: string) => `Log in with ${provider}`,
    insecure: "This page needs HTTPS.",
    insecureNext: "Open it with https://, or at localhost.",
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
    noVmsNext: "Ask your administrator for permissions on a VM (spec.permissions).",
    noVmsYet: "You have no VM at present.",
    noVmsYetNext: "A VM that you get from a pool appears here.",
    noPages: "None of your roles permits a page of the console.",
    noPagesNext: "Ask your administrator for a role with a page (conletTypesByRole).",
    noMatch: "No VM has a name that matches the search.",
    noMatchNext: "Change or delete the search.",
    noMatchAtAll: "No pool and no VM has a name that matches the search.",
    showAll: "Show all",
    showLess: "Show less",
    count: (shown: number, all: number, filtered: boolean) => (filtered ? `${number(shown)} of ${number(all)}` : vmsText(all)),
    consoleUser: (user: string) => `Console used by ${user}`,
    pool: (name: string) => `Pool ${name}`,
  },
  pools: {
    title: "Pools",
    free: (count: number) => (count === 0 ? "No VM is free. You can wait in the queue." : `${counted(count, "VM is", "VMs are")} free.`),
    waiting: (count: number) => counted(count, "user waits", "users wait"),
    assignment: assignmentText,
    place: (place: number, of: number) => (of === 1 ? "You wait for a VM. Nobody else waits." : `You wait for a VM: ${ordinal(place)} of ${of} who wait.`),
    waitReasons: {
      Exhausted: "Each VM of the pool is in use, restarts or has a problem.",
      NoMembers: "The pool has no VM. Ask your administrator.",
      RetentionInvalid: "The time limit of the pool is invalid, so VMs do not become free by it. Ask your administrator.",
      WriteRejected: "The Kubernetes API server rejects a change by the operator. Ask your administrator.",
    },
    assigned: (vm: string, expires: string | null, isExpired: boolean) =>
      !expires
        ? `You have the VM ${vm} while you use it.`
        : isExpired
          ? `You have the VM ${vm}. Your time ended at ${expires}: another user can get it.`
          : `You have the VM ${vm} until ${expires}.`,
    show: (vm: string) => `Show ${vm}`,
    actions: {
      get: { label: "Get a VM", busy: "Requesting…", sent: (pool: string) => `VM of the pool ${pool} requested.` },
      leave: { label: "Leave the queue", busy: "Leaving…", sent: (pool: string) => `You leave the queue of the pool ${pool}.` },
      giveBack: { label: "Give back", busy: "Giving back…", sent: (pool: string) => `You give back the VM of the pool ${pool}.` },
    },
    ending: "Wait until your assignment has ended.",
    ended: "Your assignment has ended.",
    giveBack: {
      title: (name: string) => `Give back ${name}?`,
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
    noMatchNext: "Change or delete the filter.",
    notPossible: "Select VMs for which this action is possible.",
    results: "Result of each VM",
    requested: "requested",
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
    of: (part: string, all: string) => `${part} of ${all}`,
    course: (label: string, lowest: string, highest: string, begin: string) => `${label} since ${begin}: between ${lowest} and ${highest}`,
    highest: (amount: string) => `at most ${amount}`,
    vms: vmsText,
    select: (name: string) => `Select ${name}`,
    selectAll: (count: number) => `Select all ${number(count)}`,
    selected: (count: number) => `${number(count)} selected`,
    many: {
      start: (count: number) => `Start ${vmsText(count)}`,
      stop: (count: number) => `Stop ${vmsText(count)}`,
    },
    stop: {
      title: (vms: string) => `Stop ${vms}?`,
      warning: "Their guests shut down. After a time limit, the VMs are powered off.",
      confirm: "Stop",
      cancel: "Cancel",
    },
    bulk: ({ action, all, left, failed }: NonNullable<typeof bulk.value>) => {
      const done = `${action === "start" ? "Start" : "Stop"} requested for ${number(all - left - failed)} of ${vmsText(all)}.`;
      return failed === 0 ? done : `${done} ${number(failed)} rejected.`;
    },
    more: (count: number) => `Show more VMs (${number(count)} left)`,
    usedFrom: (address: string) => `From ${address}`,
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
    byUser: "Action of a user",
    used: (amount: string, limit: string) => `${amount} in use, at most ${limit}`,
    disk: (name: string, size: string) => (size ? `${name}, ${size}` : name),
    network: (name: string, bridge: string | undefined) => (bridge ? `${name}, bridge ${bridge}` : `${name}, behind the address of the pod`),
    times: (count: number) => `${number(count)} times`,
  },
  size: {
    title: "Size",
    submit: "Change size",
    busy: "Changing…",
    sent: "Requested. The guest gets the change without a restart if it supports this.",
    hint: "A stopped VM gets the change at its next start.",
    fields: { cpus: "CPUs", ram: "Memory" },
    limit: (limit: string) => `At most ${limit}`,
    reasons: {
      AboveLimit: (limit: string) => `Enter at most ${limit}.`,
      BelowLimit: (limit: string) => `Enter at least ${limit}.`,
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
  /** Texts by the reason of the condition `Ready`, whose messages are English. */
  ready: {} as Record<string, string>,
  states: { Running: "Running", Starting: "Starting", Stopping: "Stopping", Stopped: "Stopped", Problem: "Problem" },
  actions: {
    start: {
      label: "Start",
      busy: "Starting…",
      sent: (name: string) => `Start of ${name} requested.`,
      notPermitted: "You have no permission to start this VM. Ask your administrator.",
    },
    stop: {
      label: "Stop",
      busy: "Stopping…",
      sent: (name: string) => `Stop of ${name} requested.`,
      notPermitted: "You have no permission to stop this VM. Ask your administrator.",
    },
    reset: {
      label: "Reset",
      busy: "Resetting…",
      sent: (name: string) => `Reset of ${name} requested.`,
      notPermitted: "You have no permission to reset this VM. Ask your administrator.",
    },
  },
  reset: {
    title: (name: string) => `Reset ${name}?`,
    warning: "The guest starts again at once, as if you pressed its reset button. It loses all data that it has not saved.",
    confirm: "Reset",
    cancel: "Cancel",
  },
  more: "More actions",
  device: {
    disabled: "The VM does not run. Start it first.",
    back: "List of VMs",
    toolbar: "Tools",
    leave: "Ctrl+Alt+Shift moves the keyboard from the guest to this toolbar. Press Tab until the guest has it again.",
    leaveShort: "Ctrl+Alt+Shift: leave the guest",
    fullScreen: "Full screen",
    endFullScreen: "End full screen",
    again: "Connect again",
    stopped: (name: string) => `${name} is stopped.`,
  },
  screen: {
    label: "Screen",
    shortLabel: "Screen",
    connecting: "Connecting to the screen…",
    ctrlAltDel: "Ctrl+Alt+Del",
    keys: "Keys",
    heldKeys: "Hold down",
    functionKeys: "Ctrl+Alt+",
    otherKeys: "Press",
    keyboard: "Keyboard",
    view: "View",
    fit: "Fit to window",
    actualSize: "Actual size",
    resizeGuest: "Adapt guest to window",
    move: "Move picture",
    screenshot: "Save picture",
    takeOver: "Take over",
    mayNotTake: "You have no permission to take it over. Wait, then connect again.",
    canvas: (name: string) => `Screen of ${name}. Ctrl+Alt+Shift moves the keyboard to the toolbar.`,
    takeOverNext: (user: string) => `If you take over, ${user} loses the connection.`,
    lastPicture: (time: string) => `Picture of ${time}`,
    starting: (name: string) => `${name} does not run yet. The screen opens as soon as it runs.`,
    key: (name: string) => `Key ${name}`,
    reasons: {
      ...deviceReasons("screen"),
      Busy: () => "Too many screens are open. The page tries again.",
      TakenOver: (user: string) => `${user} has taken over the screen.`,
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
    tooMuchOutput: "Too much output to read aloud. Move to the rows to read them.",
    terminal: (name: string) => `Serial console of ${name}. Ctrl+Alt+Shift moves the keyboard to the toolbar.`,
    matches: (index: number, count: number) => `${number(index)} of ${number(count)}`,
    starting: (name: string) => `${name} does not run yet. The serial console opens as soon as it runs.`,
    reasons: {
      ...deviceReasons("serial console"),
      Busy: () => "Too many serial consoles are open. The page tries again.",
      InUse: (user: string) => `${user} uses this VM.`,
      Unsupported: () => "This VM has no serial console for the browser. Stop it and start it again, or ask your administrator.",
    },
  },
  viewer: {
    label: "Open in viewer",
    title: (name: string) => `Open ${name} in a viewer`,
    busy: "Requesting the file…",
    saved: (name: string) => `The browser saves ${name}.`,
    next: "Open this file with virt-viewer.",
    install: "To install it: package virt-viewer on Linux, or the installer from virt-manager.org on Windows.",
    host: "Host",
    port: "Port",
    password: "Password",
    copy: "Copy",
    copied: "Copied",
    copyOf: (label: string) => `Copy ${label.toLowerCase()}`,
    valid: (seconds: number) => `The password is valid for ${number(seconds)} s.`,
    expired: "The password has expired. Request the file again.",
    again: "Request again",
    close: "Close",
    reasons: {
      NotPermitted: () => "You have no permission to use the screen of this VM. Ask your administrator.",
      NotRunning: () => "The VM does not run. Start it first.",
      LoginPending: () => "The desktop of the guest has not logged you in yet. Try again in a few seconds.",
      Assigned: (user: string) => `This VM belongs to ${user} at present. Request a VM in the list, or ask your administrator.`,
      InUse: (user: string) => `${user} uses the screen.`,
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
    unknown: (characters: string[]) => `The layout has no key for: ${characters.join(" ")}`,
    typing: (count: number, all: number) => `${number(count)} of ${number(all)} characters typed…`,
    ended: (count: number, all: number) => `Ended after ${number(count)} of ${number(all)} characters.`,
  },
  connection: {
    none: "No connection to the server. The page tries again.",
    lost: (time: string) => `Connection lost. The page shows the state of ${time}.`,
    again: "Connect again",
    noNews: "The Kubernetes API server does not answer.",
    old: (seconds: number) => `Last state, ${seconds < 120 ? `${number(seconds)} s` : `${number(Math.floor(seconds / 60))} min`} old.`,
  },
  retry: "Try again",
  loading: "Loading…",
  errors: {
    LoginRejected: () => "User or password is wrong. Correct them and try again.",
    LoginNotBegun: () => "The login took too long, or began in another browser. Log in again.",
    LoginDenied: () => "The login was canceled or rejected. Log in again, or ask your administrator.",
    ProviderFailed: () => "The provider of the login reports an error. Try again, or ask your administrator to read the log of the console.",
    NotAuthorized: () => "You have no role that permits a login here. Ask your administrator.",
    TooManyAttempts: (e: ApiError) =>
      e.retryAfterSeconds
        ? `Too many attempts. Try again in ${counted(e.retryAfterSeconds, "second", "seconds")}.`
        : "Too many attempts. Wait a minute and try again.",
    Busy: () => "The server is busy. Try again in a few seconds.",
    OtherHost: () => "The web console has another address. Open the page at the address that your administrator named.",
    OtherOrigin: () => "The server rejects requests from this address. Open the page at the address that your administrator named.",
    InvalidRequest: (e: ApiError) => `The server rejected the request.${sentence(e.message)} Reload the page and try again.`,
    NotPermitted: (e: ApiError) => `You have no permission for this action.${sentence(e.message)} Ask your administrator.`,
    NotFound: () => "This VM no longer exists, or you have lost the permission to see it. Ask your administrator.",
    Conflict: () => "Another client changed the VM at the same time. Check its state and try again.",
    ApiServer: (e: ApiError) => `The Kubernetes API server reports an error.${sentence(e.message)} Try again, or ask your administrator.`,
    NoAnswer: () => "The server does not answer. Check the network connection and try again.",
    NotVisible: () => "The server accepted the request, but the list does not show the change. Reload the page.",
    other: (e: ApiError) => `The server reports ${e.reason}.${sentence(e.message)} Try again, or ask your administrator.`,
  },
};

export type Words = typeof english;
/** Texts of a page that shows a device of a VM. */
export type DeviceText = Words["screen"] | Words["serial"];
/** Texts of a dialog that asks before an action. */
export type Confirmation = Words["reset"];

export const dictionaries = { en: english, de: german };

/** The words of the chosen language. A component, computed value or effect that uses them follows a change of the language. */
export const words = new Proxy(english, { get: (_, key) => Reflect.get(dictionaries[language.value], key) });

/** The value of a key that comes from the server. */
export const textFor = <T>(texts: Record<string, T>, key: string): T | undefined => (Object.hasOwn(texts, key) ? texts[key] : undefined);

export const errorText = (error: ApiError): string => (textFor(words.errors, error.reason) ?? words.errors.other)(error);
export const poolErrorText = (error: ApiError): string => textFor(words.pools.reasons, error.reason) ?? errorText(error);
