/** The German words of the pages. Short texts share a line. */

import type { ApiError, Assignment } from "./api";
import { numbersOf, sentence } from "./texts";
import type { Words } from "./words";

const { number, counted } = numbersOf("de");

/** Next steps that many texts end with. */
const ASK = "Wenden Sie sich an Ihre Administration.";
const RETRY = "Die Seite versucht es erneut.";
const RESTART = "Stoppen und starten Sie die VM, oder wenden Sie sich an Ihre Administration.";
const TRY_OR_ASK = "Versuchen Sie es erneut, oder wenden Sie sich an Ihre Administration.";

const vms = (count: number) => counted(count, "VM", "VMs");
const assignedText = (user: string) => `Diese VM gehört zurzeit ${user}. Fordern Sie in der Liste eine VM an, oder wenden Sie sich an Ihre Administration.`;
const notPermitted = (verb: string) => `Sie dürfen diese VM nicht ${verb}. ${ASK}`;

const assignmentText = ({ state, vm }: Assignment) => {
  switch (state) {
    case "Pending":
    case "Waiting":
      return "Sie warten auf eine VM.";
    case "Binding":
      return vm ? `Sie erhalten gleich die VM ${vm}.` : "Sie erhalten gleich eine VM.";
    case "Assigned":
      return vm ? `Sie haben die VM ${vm}.` : "Sie haben eine VM.";
    case "NameMismatch":
      return `Ihre Zuweisung hat einen falschen Namen, daher erhalten Sie durch sie keine VM. ${ASK}`;
    case "Ending":
      return "Ihre Zuweisung endet.";
    default:
      return `Ihre Zuweisung hat den Status ${state}.`;
  }
};

/** The device needs its article in both cases. */
const deviceReasons = (device: { nominative: string; accusative: string }) => ({
  Lost: () => `Verbindung verloren. ${RETRY}`,
  Ended: () => `Die VM hat ${device.accusative} geschlossen. ${RETRY}`,
  Unreachable: () => `Der Pod der VM antwortet nicht. ${RETRY}`,
  ApiServer: () => `Der Kubernetes-API-Server antwortet nicht oder meldet einen Fehler. ${RETRY}`,
  NotRunning: () => `Die VM läuft noch nicht. ${RETRY}`,
  LoginPending: () => `Der Desktop des Gastsystems hat Sie noch nicht angemeldet. Danach öffnet sich ${device.nominative}.`,
  InUse: (user: string) => `${user} benutzt ${device.accusative}.`,
  Assigned: assignedText,
  NotFound: () => `Diese VM existiert nicht, oder Sie dürfen sie nicht sehen. ${ASK}`,
  NotPermitted: () => `Sie dürfen ${device.accusative} dieser VM nicht benutzen. ${ASK}`,
  RightLost: () => `Sie dürfen ${device.accusative} dieser VM nicht mehr benutzen. ${ASK}`,
  other: (reason: string) => `Der Server meldet ${reason}. ${TRY_OR_ASK}`,
});

export const german: Words = {
  language: "de", languageName: "Deutsch", languageLabel: "Sprache",
  product: "vm-operator",
  keyName: (name) => name.replace("Ctrl", "Strg").replace("Shift", "Umschalt"),
  login: {
    title: "Anmelden", user: "Benutzer", password: "Passwort", submit: "Anmelden", busy: "Anmeldung läuft…", or: "oder",
    ended: "Ihre Anmeldung ist abgelaufen. Melden Sie sich erneut an.",
    noWay: `Niemand kann sich anmelden, weil weder Benutzer noch Anbieter konfiguriert sind. ${ASK}`,
    by: (provider) => `Anmelden mit ${provider}`,
    insecure: "Diese Seite benötigt HTTPS.", insecureNext: "Öffnen Sie sie mit https:// oder auf localhost.",
    licenses: "Lizenzen Dritter",
  },
  header: {
    theme: "Design", system: "System", light: "Hell", dark: "Dunkel",
    logout: "Abmelden", logoutBusy: "Abmeldung läuft…", logoutFailed: "Sie sind noch angemeldet.",
    place: "Cluster und Namespace", lists: "Listen der VMs", portal: "Meine VMs", overview: "Übersicht",
  },
  list: {
    title: "Virtuelle Maschinen", heading: "VMs", search: "Nach Namen suchen", loading: "Die Liste wird geladen…",
    noVms: "Keine virtuellen Maschinen.",
    noVmsNext: "Bitten Sie Ihre Administration um Berechtigungen für eine VM (spec.permissions).",
    noVmsYet: "Sie haben zurzeit keine VM.", noVmsYetNext: "Eine VM, die Sie aus einem Pool erhalten, erscheint hier.",
    noPages: "Keine Ihrer Rollen erlaubt eine Seite der Konsole.",
    noPagesNext: "Bitten Sie Ihre Administration um eine Rolle mit einer Seite (conletTypesByRole).",
    noMatch: "Keine VM hat einen Namen, der zur Suche passt.", noMatchNext: "Ändern oder löschen Sie die Suche.",
    noMatchAtAll: "Kein Pool und keine VM hat einen Namen, der zur Suche passt.",
    showAll: "Alles zeigen", showLess: "Weniger zeigen",
    count: (shown, all, filtered) => (filtered ? `${number(shown)} von ${number(all)}` : vms(all)),
    consoleUser: (user) => `Konsole benutzt von ${user}`,
    pool: (name) => `Pool ${name}`,
  },
  pools: {
    title: "Pools",
    free: (count) => (count === 0 ? "Keine VM ist frei. Sie können in der Warteschlange warten." : `${counted(count, "VM ist", "VMs sind")} frei.`),
    waiting: (count) => counted(count, "Benutzer wartet", "Benutzer warten"),
    assignment: assignmentText,
    place: (place, of) => (of === 1 ? "Sie warten auf eine VM. Sonst wartet niemand." : `Sie warten auf eine VM: Platz ${number(place)} von ${number(of)}.`),
    waitReasons: {
      Exhausted: "Jede VM des Pools wird benutzt, startet neu oder hat ein Problem.",
      NoMembers: `Der Pool hat keine VM. ${ASK}`,
      RetentionInvalid: `Die Zeitbegrenzung des Pools ist ungültig. Durch sie wird deshalb keine VM frei. ${ASK}`,
      WriteRejected: `Der Kubernetes-API-Server weist eine Änderung des Operators ab. ${ASK}`,
    },
    assigned: (vm, expires, isExpired) =>
      !expires
        ? `Sie haben die VM ${vm}, solange Sie sie benutzen.`
        : isExpired
          ? `Sie haben die VM ${vm}. Ihre Zeit ist abgelaufen (${expires}): Andere können die VM erhalten.`
          : `Sie haben die VM ${vm} bis ${expires}.`,
    show: (vm) => `${vm} zeigen`,
    actions: {
      get: { label: "VM anfordern", busy: "Wird angefordert…", sent: (pool) => `VM aus dem Pool ${pool} angefordert.` },
      leave: { label: "Warteschlange verlassen", busy: "Wird verlassen…", sent: (pool) => `Sie verlassen die Warteschlange des Pools ${pool}.` },
      giveBack: { label: "Zurückgeben", busy: "Wird zurückgegeben…", sent: (pool) => `Sie geben die VM des Pools ${pool} zurück.` },
    },
    ending: "Warten Sie, bis Ihre Zuweisung beendet ist.", ended: "Ihre Zuweisung ist beendet.",
    giveBack: {
      title: (name) => `${name} zurückgeben?`,
      warning: "Andere können diese VM dann erhalten. Nicht gespeicherte Arbeit kann verloren gehen.",
      confirm: "Zurückgeben", cancel: "Abbrechen",
    },
    reasons: {
      NotFound: `Diesen Pool gibt es nicht mehr, oder Sie dürfen ihn nicht mehr benutzen. ${ASK}`,
      Conflict: "Ihre vorige Zuweisung endet gerade. Versuchen Sie es in einigen Sekunden erneut.",
      AssignmentEnded: "Die Zeit Ihrer Zuweisung ist abgelaufen, oder jemand hat sie gelöscht.",
    },
  },
  overview: {
    title: "Übersicht", filter: "Filtern", totals: "Summen", running: "Laufende VMs",
    range: "Zeitraum", ranges: { hour: "Letzte Stunde", day: "Letzter Tag" },
    none: "Der Namespace hat keine VM.", noneNext: "Eine VM, die jemand anlegt, erscheint hier.", noMatch: "Keine VM passt zum Filter.",
    noMatchNext: "Ändern oder löschen Sie den Filter.",
    notPossible: "Wählen Sie VMs, für die diese Aktion möglich ist.", results: "Ergebnis je VM", requested: "angefordert", action: "Aktion",
    columns: {
      name: "Name", state: "Status", since: "Seit", cpus: "CPUs", ram: "RAM", node: "Node", user: "Benutzt von", assignedTo: "Zugewiesen an",
    },
    of: (part, all) => `${part} von ${all}`,
    course: (label, lowest, highest, begin) => `${label} seit ${begin}: zwischen ${lowest} und ${highest}`,
    highest: (amount) => `höchstens ${amount}`,
    vms,
    select: (name) => `${name} auswählen`,
    selectAll: (count) => `Alle ${number(count)} auswählen`,
    selected: (count) => `${number(count)} ausgewählt`,
    many: { start: (count) => `${vms(count)} starten`, stop: (count) => `${vms(count)} stoppen` },
    stop: {
      title: (vms) => `${vms} stoppen?`,
      warning: "Die Gastsysteme fahren herunter. Nach Ablauf einer Frist werden die VMs ausgeschaltet.",
      confirm: "Stoppen", cancel: "Abbrechen",
    },
    bulk: ({ action, all, left, failed }) => {
      const done = `${action === "start" ? "Start" : "Stopp"} für ${number(all - left - failed)} von ${vms(all)} angefordert.`;
      return failed === 0 ? done : `${done} ${number(failed)} abgelehnt.`;
    },
    more: (count) => `Weitere VMs zeigen (noch ${number(count)})`,
    usedFrom: (address) => `Von ${address}`,
  },
  details: {
    close: "Schließen", loading: "Die Details werden geladen…", system: "System", usedFrom: "Zugriff von",
    permissions: "Sie dürfen", noPermissions: "nur ansehen", none: "keine", disks: "Datenträger", networks: "Netze", addresses: "Adressen",
    cd: "CD-Laufwerk", emptyCd: "leer", events: "Ereignisse", warning: "Warnung",
    byUser: "Aktion eines Benutzers", noEvents: "Keine Ereignisse. Kubernetes löscht Ereignisse standardmäßig nach einer Stunde.",
    used: (amount, limit) => `${amount} benutzt, höchstens ${limit}`,
    disk: (name, size) => (size ? `${name}, ${size}` : name),
    network: (name, bridge) => (bridge ? `${name}, Bridge ${bridge}` : `${name}, hinter der Adresse des Pods`),
    times: (count) => `${number(count)}-mal`,
  },
  size: {
    title: "Größe", submit: "Größe ändern", busy: "Wird geändert…",
    sent: "Angefordert. Das Gastsystem erhält die Änderung ohne Neustart, wenn es das unterstützt.",
    hint: "Eine gestoppte VM erhält die Änderung beim nächsten Start.",
    fields: { cpus: "CPUs", ram: "RAM" },
    limit: (limit) => `Höchstens ${limit}`,
    reasons: {
      AboveLimit: (limit) => `Geben Sie höchstens ${limit} ein.`,
      BelowLimit: (limit) => `Geben Sie mindestens ${limit} ein.`,
      NotANumber: () => "Geben Sie eine ganze Zahl ein.",
      NotASize: () => "Geben Sie eine Größe wie 2 GiB oder 512 MiB ein.",
    },
  },
  rights: { start: "starten", stop: "stoppen", reset: "Reset auslösen", accessConsole: "die Konsolen benutzen", takeConsole: "den Bildschirm übernehmen" },
  ready: {
    Starting: "Die VM startet.",
    ImportingDisk: "Das Image eines Datenträgers wird importiert. Danach startet die VM.",
    Stopping: "Das Gastsystem fährt herunter.",
    Deleting: "Die VM wird gelöscht.",
    NoOperator: "Kein Operator hat diese VM bearbeitet.",
    InvalidSpec: "Ein Feld der VM hat einen ungültigen Wert.",
    NameTaken: "Ein fremdes Objekt hat den Namen, den diese VM benötigt.",
    DataMissing: "Ein PVC, den diese VM benutzt hat, existiert nicht mehr.",
    ClaimTerminating: "Ein PVC der VM wird gelöscht.",
    QuotaExceeded: "Die VM überschreitet eine Quota des Namespace.",
    PolicyRefused: "Eine Richtlinie des Clusters lehnt ein Objekt der VM ab.",
    NotAuthorized: "Dem Operator fehlt eine Berechtigung.",
    Rejected: "Der API-Server lehnt ein Objekt der VM ab.",
    AcceleratorResourceMissing: "Kein Node bietet KVM an.",
    TapResourceMissing: "Kein Node bietet das Gerät an, das Tap-Netze benötigen.",
    Unschedulable: "Kein Node kann die VM aufnehmen.",
    ClaimPending: "Ein PVC hat noch kein Volume.",
    ClaimLost: "Ein PVC hat sein Volume und damit seine Daten verloren.",
    ProvisioningFailed: "Die StorageClass kann das Volume eines PVC nicht bereitstellen.",
    VolumeAttachFailed: "Ein Volume kann nicht mit dem Node verbunden werden.",
    ClaimWrongMode: "Der Volume-Modus eines PVC passt nicht zu seiner Benutzung.",
    SecretMissing: "Ein Secret der VM fehlt, oder ihm fehlt ein Schlüssel.",
    VolumeMountFailed: "Der Node kann ein Volume nicht einhängen.",
    SandboxFailed: "Der Node kann den Pod nicht anlegen.",
    ImagePullFailed: "Der Node kann das Image des Runners nicht laden.",
    ContainerFailed: "Der Node kann den Container nicht starten.",
    PodWarning: "Kubernetes meldet eine Warnung, und der Pod startet nicht.",
    RestartBackoff: "Die VM wurde unerwartet beendet. Der Operator startet sie nach einer Wartezeit erneut.",
    NodeUnreachable: "Der Node der VM antwortet nicht.",
    RunnerSilent: "Der Runner der VM meldet sich nicht.",
    TerminationOverdue: "Der Pod ist nach Ablauf seiner Frist noch nicht beendet.",
    QemuSilent: "QEMU antwortet nicht.",
    DiskFull: "Der Speicher eines Datenträgers ist voll. Das Gastsystem ist angehalten.",
    DiskError: "Ein Datenträger meldet Fehler. Das Gastsystem ist angehalten.",
    BootImageMissing: "Das Image für den Start von CD fehlt.",
    ImageTooLarge: "Das Image ist größer als der Datenträger.",
    FormatNotSupported: "Das Image ist weder ein Raw- noch ein qcow2-Image.",
    ImageRefused: "Das Image ist beschädigt oder hat eine nicht erlaubte Eigenschaft.",
    AddressRefused: "Die URL eines Images führt zu einer nicht erlaubten Adresse.",
    DiskNotEmpty: "Ein Datenträger, der gefüllt werden soll, ist nicht leer.",
    SourceInUse: "Ein Pod oder eine VM kann noch auf die Quelle des Datenträgers schreiben.",
    SourceMissing: "Die Quelle des Datenträgers fehlt.",
    DiskNotCloned: "Ein Datenträger ist beim ersten Start leer, obwohl er eine Quelle hat.",
    ChecksumMismatch: "Die Prüfsumme des Images stimmt nicht.",
    ImportFailed: "Der Import eines Images ist fehlgeschlagen.",
    MediaFetchFailed: "Das CD-Image, von dem die VM startet, kann nicht geladen werden.",
  },
  states: { Running: "Läuft", Starting: "Startet", Stopping: "Stoppt", Stopped: "Gestoppt", Problem: "Problem" },
  actions: {
    start: { label: "Starten", busy: "Startet…", sent: (name) => `Start von ${name} angefordert.`, notPermitted: notPermitted("starten") },
    stop: { label: "Stoppen", busy: "Stoppt…", sent: (name) => `Stopp von ${name} angefordert.`, notPermitted: notPermitted("stoppen") },
    reset: { label: "Reset", busy: "Reset läuft…", sent: (name) => `Reset von ${name} angefordert.`, notPermitted: `Sie dürfen bei dieser VM keinen Reset auslösen. ${ASK}` },
  },
  reset: {
    title: (name) => `Reset von ${name}?`,
    warning: "Das Gastsystem startet sofort neu, wie nach einem Druck auf den Reset-Knopf. Es verliert alle nicht gespeicherten Daten.",
    confirm: "Reset", cancel: "Abbrechen",
  },
  more: "Weitere Aktionen",
  device: {
    disabled: "Die VM läuft nicht. Starten Sie sie zuerst.", back: "Liste der VMs", toolbar: "Werkzeuge",
    leave: "Strg+Alt+Umschalt wechselt vom Gastsystem zu dieser Leiste. Mit Tab gelangen Sie zurück.",
    leaveShort: "Strg+Alt+Umschalt: Gastsystem verlassen",
    fullScreen: "Vollbild", endFullScreen: "Vollbild beenden", again: "Erneut verbinden",
    stopped: (name) => `${name} ist gestoppt.`,
  },
  screen: {
    label: "Bildschirm", shortLabel: "Bildschirm", connecting: "Verbindung zum Bildschirm wird hergestellt…",
    ctrlAltDel: "Strg+Alt+Entf", keys: "Tasten", heldKeys: "Gedrückt halten", functionKeys: "Strg+Alt+", otherKeys: "Drücken", keyboard: "Tastatur",
    view: "Ansicht", fit: "An Fenster anpassen", actualSize: "Originalgröße", resizeGuest: "Gastsystem an Fenster anpassen",
    move: "Bild verschieben", screenshot: "Bild speichern", takeOver: "Übernehmen", mayNotTake: "Sie dürfen nicht übernehmen. Warten Sie, und verbinden Sie dann erneut.",
    canvas: (name) => `Bildschirm von ${name}. Strg+Alt+Umschalt wechselt zur Werkzeugleiste.`,
    takeOverNext: (user) => `Wenn Sie übernehmen, verliert ${user} die Verbindung.`,
    lastPicture: (time) => `Bild von ${time} Uhr`,
    starting: (name) => `${name} läuft noch nicht. Der Bildschirm öffnet sich, sobald die VM läuft.`,
    key: (name) => `Taste ${name}`,
    reasons: {
      ...deviceReasons({ nominative: "der Bildschirm", accusative: "den Bildschirm" }),
      Busy: () => `Zu viele Bildschirme sind geöffnet. ${RETRY}`,
      TakenOver: (user) => `${user} hat den Bildschirm übernommen.`,
      Replaced: () => "Sie haben diesen Bildschirm in einem anderen Fenster geöffnet.",
      Unsupported: () => `Diese VM hat keinen Bildschirm für den Browser. ${RESTART}`,
    },
  },
  serial: {
    label: "Serielle Konsole", shortLabel: "Seriell", connecting: "Verbindung zur seriellen Konsole wird hergestellt…",
    noOutput: "Noch keine Ausgabe. Drücken Sie die Eingabetaste.", keys: "Tasten",
    paste: "Einfügen", pasteTitle: "Text einfügen", pasteText: "Text", pasteSubmit: "Senden", cancel: "Abbrechen",
    pasteHint: "Das Gastsystem erhält den Text, als würden Sie ihn eintippen. Jedes Zeilenende ist die Eingabetaste.",
    search: "Suchen", searchNext: "Nächster Treffer", searchPrevious: "Voriger Treffer", searchClose: "Suche schließen", noMatch: "Kein Treffer",
    view: "Ansicht", fontSize: "Schriftgröße", fit: "An Fenster anpassen", standard: "80 × 24 Zeichen", sendSize: "Größe in der Shell setzen",
    sendSizeHint: "Gibt den Befehl stty mit der Größe dieses Terminals ein. Das Gastsystem kennt die Größe sonst nicht.",
    screenReader: "Screenreader unterstützen", reset: "Anzeige leeren und zurücksetzen", save: "Text speichern",
    tooMuchOutput: "Zu viel Ausgabe zum Vorlesen. Gehen Sie zu den Zeilen, um sie zu lesen.",
    terminal: (name) => `Serielle Konsole von ${name}. Strg+Alt+Umschalt wechselt zur Werkzeugleiste.`,
    matches: (index, count) => `${number(index)} von ${number(count)}`,
    starting: (name) => `${name} läuft noch nicht. Die serielle Konsole öffnet sich, sobald die VM läuft.`,
    reasons: {
      ...deviceReasons({ nominative: "die serielle Konsole", accusative: "die serielle Konsole" }),
      Busy: () => `Zu viele serielle Konsolen sind geöffnet. ${RETRY}`,
      InUse: (user) => `${user} benutzt diese VM.`,
      Unsupported: () => `Diese VM hat keine serielle Konsole für den Browser. ${RESTART}`,
    },
  },
  viewer: {
    label: "Im Viewer öffnen", busy: "Die Datei wird angefordert…", next: "Öffnen Sie diese Datei mit virt-viewer.",
    install: "So installieren Sie ihn: Paket virt-viewer unter Linux, Installationsprogramm von virt-manager.org unter Windows.",
    host: "Host", port: "Port", password: "Passwort", copy: "Kopieren", copied: "Kopiert", again: "Erneut anfordern", close: "Schließen",
    expired: "Das Passwort ist abgelaufen. Fordern Sie die Datei erneut an.",
    title: (name) => `${name} in einem Viewer öffnen`,
    saved: (name) => `Der Browser speichert ${name}.`,
    copyOf: (label) => `${label} kopieren`,
    valid: (seconds) => `Das Passwort gilt noch ${number(seconds)} s.`,
    reasons: {
      NotPermitted: () => `Sie dürfen den Bildschirm dieser VM nicht benutzen. ${ASK}`,
      NotRunning: () => "Die VM läuft nicht. Starten Sie sie zuerst.",
      LoginPending: () => "Der Desktop des Gastsystems hat Sie noch nicht angemeldet. Versuchen Sie es in einigen Sekunden erneut.",
      Assigned: assignedText,
      InUse: (user) => `${user} benutzt den Bildschirm.`,
      Unsupported: () => `Diese VM unterstützt keinen Viewer. ${RESTART}`,
      NoDisplay: () => "Diese VM hat kein SPICE-Display. Benutzen Sie den Bildschirm im Browser, oder wenden Sie sich an Ihre Administration.",
      PasswordNotSet: () => `QEMU hat das Passwort des Displays nicht gesetzt. ${TRY_OR_ASK}`,
      Unreachable: () => "Der Pod der VM antwortet nicht. Versuchen Sie es in einigen Sekunden erneut.",
    },
  },
  paste: {
    open: "Einfügen", title: "Text als Tastendrücke einfügen", text: "Text", layout: "Tastaturbelegung des Gastsystems",
    hint: "Das Gastsystem erhält den Text, als würden Sie ihn eintippen. Jedes Zeilenende ist die Eingabetaste.",
    submit: "Eintippen", submitKnown: "Ohne diese eintippen", cancel: "Schließen", stop: "Abbrechen",
    layouts: { us: "US", de: "Deutsch", deNoDeadKeys: "Deutsch ohne Tottasten" },
    unknown: (characters) => `Die Belegung hat keine Taste für: ${characters.join(" ")}`,
    typing: (count, all) => `${number(count)} von ${number(all)} Zeichen eingetippt…`,
    ended: (count, all) => `Nach ${number(count)} von ${number(all)} Zeichen beendet.`,
  },
  connection: {
    none: `Keine Verbindung zum Server. ${RETRY}`, again: "Erneut verbinden",
    lost: (time) => `Verbindung verloren. Die Seite zeigt den Stand von ${time} Uhr.`,
    noNews: "Der Kubernetes-API-Server antwortet nicht.",
    old: (seconds) => `Letzter Stand, ${seconds < 120 ? `${number(seconds)} s` : `${number(Math.floor(seconds / 60))} min`} alt.`,
  },
  retry: "Erneut versuchen", loading: "Wird geladen…",
  errors: {
    LoginRejected: () => "Benutzer oder Passwort ist falsch. Korrigieren Sie die Eingabe und versuchen Sie es erneut.",
    LoginNotBegun: () => "Die Anmeldung hat zu lange gedauert oder in einem anderen Browser begonnen. Melden Sie sich erneut an.",
    LoginDenied: () => "Die Anmeldung wurde abgebrochen oder abgelehnt. Melden Sie sich erneut an, oder wenden Sie sich an Ihre Administration.",
    ProviderFailed: () =>
      "Der Anbieter der Anmeldung meldet einen Fehler. Versuchen Sie es erneut, oder bitten Sie Ihre Administration, das Log der Konsole zu lesen.",
    NotAuthorized: () => `Sie haben keine Rolle, die hier eine Anmeldung erlaubt. ${ASK}`,
    TooManyAttempts: (e) =>
      e.retryAfterSeconds
        ? `Zu viele Versuche. Versuchen Sie es in ${counted(e.retryAfterSeconds, "Sekunde", "Sekunden")} erneut.`
        : "Zu viele Versuche. Warten Sie eine Minute und versuchen Sie es erneut.",
    Busy: () => "Der Server ist ausgelastet. Versuchen Sie es in einigen Sekunden erneut.",
    OtherHost: () => "Die Webkonsole hat eine andere Adresse. Öffnen Sie die Seite unter der Adresse, die Ihre Administration genannt hat.",
    OtherOrigin: () => "Der Server lehnt Anfragen von dieser Adresse ab. Öffnen Sie die Seite unter der Adresse, die Ihre Administration genannt hat.",
    InvalidRequest: (e) => `Der Server hat die Anfrage abgelehnt.${sentence(e.message)} Laden Sie die Seite neu und versuchen Sie es erneut.`,
    NotPermitted: (e) => `Sie dürfen diese Aktion nicht ausführen.${sentence(e.message)} ${ASK}`,
    NotFound: () => `Diese VM gibt es nicht mehr, oder Sie dürfen sie nicht mehr sehen. ${ASK}`,
    Conflict: () => "Ein anderer Client hat die VM gleichzeitig geändert. Prüfen Sie ihren Status und versuchen Sie es erneut.",
    ApiServer: (e) => `Der Kubernetes-API-Server meldet einen Fehler.${sentence(e.message)} ${TRY_OR_ASK}`,
    NoAnswer: () => "Der Server antwortet nicht. Prüfen Sie die Netzwerkverbindung und versuchen Sie es erneut.",
    NotVisible: () => "Der Server hat die Anfrage angenommen, aber die Liste zeigt die Änderung nicht. Laden Sie die Seite neu.",
    other: (e: ApiError) => `Der Server meldet ${e.reason}.${sentence(e.message)} ${TRY_OR_ASK}`,
  },
};
