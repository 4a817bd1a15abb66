/** The page: header, login, list, screen or serial console, and messages. */

import "./tokens.css";
import "./app.css";
import { effect, useSignal } from "@preact/signals";
import { render } from "preact";
import { useEffect } from "preact/hooks";
import type { Session } from "./api";
import { Details } from "./details";
import { List } from "./list";
import { connection, connectNow, oldSince, startLive, TRIES_BEFORE_BUTTON } from "./live";
import { Insecure, Login } from "./login";
import { LanguageSelect } from "./parts";
import { Overview } from "./table";
import { ScreenPage } from "./screen";
import { SerialPage } from "./serial";
import { theme, THEMES, type Theme } from "./settings";
import { announcement, list, lists, listUrl, loadSession, logout, logoutState, phase, place } from "./state";
import { errorText, words } from "./words";

const placeOf = ({ cluster, namespace }: Session) => (cluster ? `${cluster} / ${namespace}` : namespace);

function App() {
  if (!isSecureContext) return <Insecure />;
  const now = phase.value;
  switch (now.is) {
    case "start":
      return (
        <main class="login" aria-busy="true">
          <p role="status">{words.loading}</p>
        </main>
      );
    case "startFailed":
      return (
        <main class="login">
          <h1>{words.product}</h1>
          <p role="alert">{errorText(now.error)}</p>
          <button type="button" onClick={() => void loadSession()}>
            {words.retry}
          </button>
          <div class="footer">
            <LanguageSelect />
          </div>
        </main>
      );
    case "login":
      return <Login ended={now.ended} />;
    case "loggedIn":
      return (
        <>
          <Page session={now.session} />
          <Messages />
        </>
      );
  }
}

function Page({ session }: { session: Session }) {
  const now = place.value;
  if ("view" in now) return now.view === "screen" ? <ScreenPage key={now.vm} name={now.vm} /> : <SerialPage key={now.vm} name={now.vm} />;
  return (
    <>
      <Header session={session} />
      <div class={`pages${now.vm ? " split" : ""}`}>
        {now.list === "overview" ? <Overview /> : <List />}
        {now.vm && <Details name={now.vm} of={now.list} />}
      </div>
    </>
  );
}

/** The title of the window. */
function title(): string {
  if (phase.value.is === "login") return `${words.login.title} – ${words.product}`;
  if (phase.value.is !== "loggedIn") return words.product;
  const now = place.value;
  if ("list" in now) return `${now.vm ?? words.header[now.list]} – ${placeOf(phase.value.session)}`;
  return `${now.vm} – ${words[now.view].label}`;
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
      {lists.value.length > 1 && (
        <nav aria-label={text.lists}>
          {lists.value.map((list) => (
            <a key={list} href={listUrl(list)} {...("list" in place.value && place.value.list === list && { "aria-current": "page" as const })}>
              {text[list]}
            </a>
          ))}
        </nav>
      )}
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
      <LanguageSelect />
      <button type="button" aria-disabled={busy} onClick={() => void logout()}>
        {busy ? text.logoutBusy : text.logout}
      </button>
    </header>
  );
}

/** Screen readers read the text once, without the seconds. */
function OldState({ since }: { since: Date }) {
  const now = useSignal(Date.now());
  useEffect(() => {
    const ticks = setInterval(() => (now.value = Date.now()), 1000);
    return () => clearInterval(ticks);
  }, []);
  const seconds = Math.max(0, Math.round((now.value - since.getTime()) / 1000));
  return (
    <div>
      <p>
        {words.connection.noNews} <span aria-live="off">{words.connection.old(seconds)}</span>
      </p>
    </div>
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
        {!lost && oldSince.value && <OldState since={oldSince.value} />}
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
  document.documentElement.lang = words.language;
  // It is in the previous language.
  announcement.value = "";
});
effect(() => {
  document.title = title();
});
render(<App />, document.getElementById("app")!);
if (isSecureContext) {
  startLive();
  void loadSession();
}
