//! Logins by a provider of OpenID Connect, which is another process.

use super::*;
use tokio::io::{AsyncBufReadExt, BufReader};

/// Adds the provider to the configuration of the console.
fn configure_provider(console: &Console, change: Value) {
    let path = console.dir.path().join("config.yaml");
    let mut config: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    let callback = format!("http://{}/oauth/callback", console.address);
    let web = &mut config["/Manager"]["/GuiHttpServer"]["/ConsoleWeblet"]["/WebConsole"];
    web["/OidcClient"] = json!({"redirectUri": callback});
    let mut provider = json!({"name": "test", "displayName": "the test", "clientId": "console", "secret": "hidden",
        "rolesClaim": "realm_access.roles", "authorizedRoles": ["operators"],
        "userMappings": [{"from": "(.*)@example", "to": "$1"}], "roleMappings": [{"from": "operators", "to": "staff"}]});
    let fields = provider.as_object_mut().unwrap();
    fields.extend(change.as_object().unwrap().clone());
    web["/LoginConlet"]["oidcProviders"] = json!([provider]);
    let new = console.dir.path().join("new");
    std::fs::write(&new, config.to_string()).unwrap();
    std::fs::rename(&new, &path).unwrap();
}

async fn providers(console: &Console) -> Value {
    let (code, _, body) = console.send("GET", "/api/v1/login", "", "").await;
    assert_eq!(code, 200);
    let ways: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(ways["password"], true);
    ways["providers"].clone()
}

/// Starts the provider, and configures the console for it. Returns its process and address.
pub(super) async fn start_provider(console: &Console, change: Value) -> (Child, String) {
    let callback = format!("http://{}/oauth/callback", console.address);
    let pages = Command::new(root().join("tests/web/pages"))
        .arg("packages")
        .status();
    assert!(pages.await.unwrap().success());
    let mut provider = Command::new("node")
        .arg(root().join("tests/web/provider.mjs"))
        .arg(callback)
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(provider.stdout.take().unwrap()).lines();
    let issuer = lines.next_line().await.unwrap().unwrap();
    let configuration = format!("{issuer}/.well-known/openid-configuration");
    let mut fields = json!({"configurationEndpoint": configuration});
    let change = change.as_object().unwrap().clone();
    fields.as_object_mut().unwrap().extend(change);
    configure_provider(console, fields);
    eventually("the provider is configured", async || {
        providers(console).await == button()
    })
    .await;
    (provider, issuer)
}

/// The provider on the login page.
fn button() -> Value {
    json!([{"name": "test", "title": "the test"}])
}

#[tokio::test]
async fn user_of_a_provider_has_the_rights_of_mapped_roles() {
    let console = Console::start("web-provider").await;
    let (mut provider, issuer) = start_provider(&console, json!({})).await;
    let journey = Command::new("node")
        .arg(root().join("tests/web/provider-login.mjs"))
        .env("CONSOLE_URL", format!("http://{}", console.address))
        .env("PROVIDER", "the test")
        .env("VM", "other")
        .output();
    let journey = journey.await.unwrap();
    let text = String::from_utf8_lossy(&journey.stdout);
    assert!(journey.status.success(), "{text}\n{}", console.log());
    let log = console.log();
    let audit = log
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let login = audit
        .into_iter()
        .find(|line| line["message"] == "login by a provider")
        .unwrap();
    assert_eq!(
        (&login["user"], &login["client"]),
        (&json!("ops"), &json!("127.0.0.1"))
    );
    assert!(
        log.contains("mallory@example") && !log.contains("hidden"),
        "{log}"
    );

    // A login that another browser has begun, and one with another provider behind the same address.
    let location = |head: &str| {
        let line = head
            .lines()
            .find_map(|line| line.strip_prefix("location: "));
        line.unwrap_or_default().to_owned()
    };
    let begin = async |path: &str| console.send("GET", path, "", "").await;
    let (code, head, _) = begin("/oauth/callback?code=a&state=b").await;
    assert_eq!(
        (code, location(&head).as_str()),
        (303, "/?login=LoginNotBegun")
    );
    let (code, head, _) = begin("/api/v1/oidc/test?page=%2F%2Fevil.example").await;
    assert_eq!(code, 303);
    let at_provider = location(&head);
    assert!(at_provider.starts_with(&issuer), "{at_provider}");
    for parameter in [
        "code_challenge_method=S256",
        "state=",
        "nonce=",
        "prompt=login",
    ] {
        assert!(at_provider.contains(parameter), "{at_provider}");
    }
    let cookie = head
        .lines()
        .find_map(|line| line.strip_prefix("set-cookie: "))
        .unwrap();
    let (cookie, attributes) = cookie.split_once("; ").unwrap();
    assert!(
        attributes.contains("HttpOnly") && attributes.contains("SameSite=Lax"),
        "{attributes}"
    );
    let headers = format!("Cookie: {cookie}\r\n");
    let back = async |query: &str| {
        let path = format!("/oauth/callback?{query}");
        let (_, head, _) = console.send("GET", &path, &headers, "").await;
        location(&head)
    };
    assert_eq!(back("code=a&state=b").await, "/?login=LoginNotBegun");
    let (_, state) = at_provider.split_once("state=").unwrap();
    let state = state.split('&').next().unwrap();
    assert_eq!(
        back(&format!("error=access_denied&state={state}")).await,
        "/?login=LoginDenied"
    );
    assert_eq!(
        back(&format!("code=a&state={state}")).await,
        "/?login=ProviderFailed"
    );
    let (_, head, _) = begin("/api/v1/oidc/other").await;
    assert_eq!(location(&head), "/?login=ProviderFailed");
    drop(provider.kill().await);
    let (_, head, _) = begin("/api/v1/oidc/test").await;
    assert_eq!(location(&head), "/?login=ProviderFailed");

    // A wrong configuration leaves the previous one in use.
    configure_provider(
        &console,
        json!({"configurationEndpoint": "http://provider.example/.well-known/openid-configuration"}),
    );
    eventually("the error is in the log", async || {
        console
            .log()
            .contains("oidcProviders[0].configurationEndpoint: the value is not allowed")
    })
    .await;
    assert_eq!(providers(&console).await, button());
}
