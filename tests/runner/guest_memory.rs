//! The mapping of the guest's memory.

use crate::fixture::Fixture;
use serde_json::json;
use std::fs;

/// The permissions and the page size of QEMU's mapping of the guest's memory, if it is a file without a name.
fn mapping(pid: u32) -> Option<(String, String)> {
    let maps = fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
    let (_, of_file) = maps.split_once("/memfd:memory-backend-memfd")?;
    let rights = maps
        .lines()
        .find(|line| line.contains("/memfd:memory-backend-memfd"))?
        .split_whitespace()
        .nth(1)?;
    let page = of_file
        .lines()
        .find_map(|line| line.strip_prefix("KernelPageSize:"))?;
    Some((rights.to_owned(), page.trim().to_owned()))
}

#[test]
fn shared_memory_is_a_file_that_qemu_can_hand_on_and_ordinary_memory_is_not() {
    for shared in [true, false] {
        let fixture = Fixture::with_guest();
        fixture.configure(
            &json!({}),
            &json!({"sharedMemory": shared, "powerdownTimeout": 0}),
        );
        let vm = fixture.start(None);
        vm.console().wait("ready");
        let expected = shared.then(|| ("rw-s".to_owned(), "4 kB".to_owned()));
        assert_eq!(mapping(vm.qemu()), expected, "shared: {shared}");
        vm.signal("-TERM");
        assert_eq!(vm.end().code, 10);
    }
}

/// The node's huge pages of 2 MiB. The previous number is restored when this is dropped.
struct HugePages(String);

const SET_ASIDE: &str = "/proc/sys/vm/nr_hugepages";

impl HugePages {
    /// Reserves `count` huge pages. Returns none if the kernel does not provide them.
    fn set_aside(count: u32) -> Option<Self> {
        let pages = Self(fs::read_to_string(SET_ASIDE).ok()?);
        fs::write(SET_ASIDE, count.to_string()).ok()?;
        (fs::read_to_string(SET_ASIDE).ok()?.trim() == count.to_string()).then_some(pages)
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        let _ = fs::write(SET_ASIDE, &self.0);
    }
}

#[test]
fn memory_is_made_of_huge_pages_and_where_there_are_none_it_is_explained() {
    let fixture = Fixture::new();
    let huge =
        json!({"drives": [], "hugepages": "2Mi", "maximumRam": "64 MiB", "powerdownTimeout": 0});
    fixture.configure(&json!({}), &huge);
    let Some(pages) = HugePages::set_aside(0) else {
        println!("huge pages were not looked at: {SET_ASIDE} cannot be written here");
        return;
    };
    let end = fixture.start(None).end();
    assert_eq!(
        (end.code, &end.outcome["reason"]),
        (70, &json!("StartFailed")),
        "{}",
        end.log
    );
    let message = end.outcome["message"].as_str().unwrap();
    assert!(
        message.contains("Cannot allocate memory") && message.contains("vm.hugepages"),
        "{message}"
    );
    let Some(_some) = HugePages::set_aside(40) else {
        println!("huge pages were not used: the kernel has no room for 40 of them");
        return;
    };
    let vm = fixture.start(None);
    vm.reaches("Booting");
    assert_eq!(
        mapping(vm.qemu()),
        Some(("rw-s".to_owned(), "2048 kB".to_owned()))
    );
    vm.signal("-TERM");
    assert_eq!(vm.end().code, 10);
    drop(pages);
}
