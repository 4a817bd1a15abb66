/** The page: header, login, list or screen, and messages. */

import "./tokens.css";
import "./app.css";
import { effect } from "@preact/signals";
import { render } from "preact";
import type { Session } from "./api";
import { List } from "./list";
import { connection, connectNow, startLive, TRIES_BEFORE_BUTTON } from "./live";
import { Insecure, Login } from "./login";
import { ScreenPage } from "./screen";
import { announcement, list, loadSession, logout, logoutState, phase, screenVm, theme, THEMES, type Theme } from "./state";
import { errorText, words } from "./words";

const placeOf = ({ cluster, namespace }: Session) => (cluster ? `${cluster} / ${namespace}` : namespace);

function App() {
  if (!isSecureContext) return <Insecure />;
  const now = phase.value;
  switch (now.is) {
    case "start":
      return <main class="login" aria-busy="true" />;
    case "startFailed":
      return (
        <main class="login">
          <h1>{words.product}</h1>
          <p role="alert">{errorText(now.error)}</p>
          <button type="button" onClick={() => void loadSession()}>
            {words.retry}
          </button>
        </main>
      );
    case "login":
      return <Login ended={now.ended} />;
    case "loggedIn":
      return (
        <>
          {screenVm.value === null ? (
            <>
              <Header session={now.session} />
              <List />
            </>
          ) : (
            <ScreenPage key={screenVm.value} name={screenVm.value} />
          )}
          <Messages />
        </>
      );
  }
}

function Header({ session }: { session: Session }) {
  const text = words.header;
  const { busy } = logoutState.value;
  return (
    <header>
      <p class="product">{words.product}</p>
      <p class="place" title={text.place}>
        {placeOf(session)}
      </p>
      <p class="user" title={session.user}>
        {session.fullName ?? session.user}
      </p>
      <label for="theme">{text.theme}</label>
      <select id="theme" value={theme.value} onChange={(event) => (theme.value = event.currentTarget.value as Theme)}>
        {THEMES.map((name) => (
          <option key={name} value={name}>
            {text[name]}
          </option>
        ))}
      </select>
      <button type="button" aria-disabled={busy} onClick={() => void logout()}>
        {busy ? text.logoutBusy : text.logout}
      </button>
    </header>
  );
}

/** Messages at the bottom of the window: they do not move the list. */
function Messages() {
  const lost = connection.value.is === "lost" ? connection.value : null;
  const failed = logoutState.value.error;
  const time = lost?.since?.toLocaleTimeString(words.language, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
  return (
    <>
      <div class="messages" role="status">
        {failed && (
          <div class="error">
            <p>{`${words.header.logoutFailed} ${errorText(failed)}`}</p>
            <button type="button" onClick={() => void logout()}>
              {words.retry}
            </button>
          </div>
        )}
        {lost && (
          <div>
            <p>{time && list.value ? words.connection.lost(time) : words.connection.none}</p>
            {lost.tries >= TRIES_BEFORE_BUTTON && (
              <button type="button" onClick={connectNow}>
                {words.connection.again}
              </button>
            )}
          </div>
        )}
      </div>
      <p class="hidden" aria-live="polite">
        {announcement.value}
      </p>
    </>
  );
}

effect(() => {
  document.documentElement.dataset.theme = theme.value;
});
effect(() => {
  const now = phase.value;
  document.title = now.is !== "loggedIn" ? words.product : (screenVm.value ?? `${placeOf(now.session)} – ${words.product}`);
});
document.documentElement.lang = words.language;
render(<App />, document.getElementById("app")!);
if (isSecureContext) {
  startLive();
  void loadSession();
}
