//! What goes wrong between QEMU's start and the guest's.

use super::*;

#[tokio::test]
async fn a_start_that_its_deadline_ends_has_the_tpms_words_too() {
    let mut rig = starting().await;
    let (tpm, qemu) = (rig.take_tpm("libtpms: bad magic"), rig.qemu());
    rig.driver.step(Event::ContinueFailed("too late".to_owned()));
    rig.driver.qemu.signal(Signal::KILL);
    rig.driver.have_ended(&[(tpm, 1)]).await;
    rig.driver.have_ended(&[(qemu, -9)]).await;
    let outcome = rig.driver.outcome.take().unwrap();
    assert!(outcome.message.contains("libtpms: bad magic"), "{}", outcome.message);
}
