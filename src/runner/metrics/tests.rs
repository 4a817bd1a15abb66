use super::*;

#[test]
fn samples_have_all_labels_and_unknown_values_are_omitted() {
    let mut samples = Samples::default();
    samples.add_each(
        "kubevirt_vmi_storage_iops_read_total",
        [(vec![("drive", "/dev/x".to_owned())], 3.0)],
    );
    samples.add("kubevirt_vmi_memory_swap_in_traffic_bytes", Some(7.0));
    samples.add("vmoperator_accelerated", Some(0.5));
    samples.add("vmoperator_qemu_answers", None);
    let text = samples.into_text(vec![
        ("name", "a\"b".to_owned()),
        ("namespace", "n".to_owned()),
    ]);
    insta::assert_snapshot!(text);
}
