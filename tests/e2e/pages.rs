//! The commands of the README and of the pages in `docs/`, as printed and in the order of the table of contents. Each page is one
//! script. Only the name of the namespace differs. Blocks with the comment `not run` are left out. The image of the pages' VM
//! is the tiny guest on a server of the node, because it boots faster than Debian.

mod exhaustive {
    use crate::debian::{example, ssh_key};
    use crate::harness::{Space, console, e2e, environment, eventually, kubectl};
    use std::fs;
    use std::path::Path;
    use std::process::Stdio;
    use support::pages::{Page, pages, reader};
    use tempfile::TempDir;
    use tokio::process::Child;

    /// The namespace of the pages.
    const NAMESPACE: &str = "vmop-demo";
    /// The page whose VM is deleted before the section [`RESTORE`].
    const BACKUP: &str = "docs/operate/backup.md";
    const RESTORE: &str = "Restore";
    /// Deletes the VM with its data, as another cluster has neither.
    const DELETE: &str = "
kubectl delete vm -n vmop-demo debian
kubectl delete pvc -n vmop-demo debian-system-disk debian-data-disk debian-runner-data";
    /// The namespace exists already, and it has an operator.
    const KUBECTL: &str = r#"
set -euo pipefail
kubectl() {
    [[ "$1 $2" != "create namespace" ]] || return 0
    "$TOOL" kubectl "$@"
}
"#;
    /// The time limit of a page in seconds.
    const LIMIT: &str = "600";

    /// The home directory of a reader with a clone, a key for SSH, and the pages' VM with the image of a server. It needs the server until
    /// the import is complete.
    fn home() -> (TempDir, Child) {
        let home = reader();
        let key = ssh_key(&home.path().join(".ssh/id_ed25519"));
        let (server, vm) = example(home.path(), &environment::guest_image(), &key);
        fs::write(home.path().join("debian.yaml"), vm).unwrap();
        (home, server)
    }

    /// The blocks of a page that are run, of the section [`RESTORE`] or of the others.
    fn script(page: &Page, restores: bool) -> String {
        let blocks = page
            .blocks
            .iter()
            .filter(|block| block.is_run && (block.section == RESTORE) == restores);
        blocks.map(|block| block.text.as_str()).collect()
    }

    /// Runs a script.
    ///
    /// # Errors
    /// The commands that were run, and their output.
    async fn run(space: &Space, home: &Path, script: &str) -> Result<(), String> {
        let script = format!(
            "{KUBECTL}\nset -x\n{}",
            script
                .replace(NAMESPACE, &space.name)
                .replace("examples/debian.yaml", "debian.yaml")
        );
        let mut shell = tokio::process::Command::new("timeout");
        shell
            .args([LIMIT, "bash", "-c", &script])
            .current_dir(home)
            .env("HOME", home)
            .env("TOOL", environment::dir().join("bin/vmop-kube"))
            .envs(environment::kubectl_environment())
            .stdin(Stdio::null())
            .kill_on_drop(true);
        kubectl::without_proxies(&mut shell);
        let output = shell.output().await.unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() {
            return Ok(());
        }
        Err(text(&output.stderr) + &text(&output.stdout))
    }

    /// The guest's UUID and MAC address.
    async fn identity(space: &Space) -> String {
        let read = "cat /sys/class/dmi/id/product_uuid /sys/class/net/eth0/address";
        eventually("the guest reports its identity", 120, async || {
            console::shell(space, "debian", read).await
        })
        .await
    }

    /// Waits for the guest if the previous page has left the VM running.
    async fn wait_until_ready(space: &Space) {
        let state = [
            "get",
            "vm",
            "debian",
            "--output",
            "jsonpath={.spec.vm.state}",
        ];
        if space
            .try_kubectl(&state)
            .await
            .is_ok_and(|state| state == "Running")
        {
            let ready = [
                "wait",
                "vm/debian",
                "--for=condition=Ready",
                "--timeout=300s",
            ];
            space.kubectl(&ready).await;
        }
    }

    #[test]
    fn commands_of_all_pages_work_as_printed() {
        e2e(2, async |space| {
            let (home, _server) = home();
            let mut wrong = Vec::new();
            for page in pages() {
                wait_until_ready(space).await;
                let mut result = run(space, home.path(), &script(&page, false)).await;
                if page.name == BACKUP && result.is_ok() {
                    let original = identity(space).await;
                    run(space, home.path(), DELETE).await.unwrap();
                    result = run(space, home.path(), &script(&page, true)).await;
                    if result.is_ok() {
                        assert_eq!(identity(space).await, original);
                    }
                }
                if let Err(error) = result {
                    println!("{}: {error}", page.name);
                    wrong.push(page.name);
                }
            }
            assert!(wrong.is_empty(), "{wrong:?}");
        });
    }
}
