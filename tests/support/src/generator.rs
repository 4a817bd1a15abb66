//! Generates specs that the Java VM-Operator admits and starts, according to its schema, its runner and QEMU. Intended
//! differences (the table in `docs/deviations.md`) are left out.

use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use proptest::strategy::ValueTree;
use proptest::string::string_regex;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use serde_json::{Map, Value, json};

/// This number of specs. Equal seeds give equal specs.
pub fn specs(seed: [u8; 32], count: usize) -> Vec<Value> {
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    (0..count)
        .map(|_| spec().new_tree(&mut runner).unwrap().current())
        .collect()
}

fn text(pattern: &str) -> BoxedStrategy<Value> {
    string_regex(pattern).unwrap().prop_map(Value::from).boxed()
}

fn one_of(values: &[&'static str]) -> BoxedStrategy<Value> {
    select(values.to_vec()).prop_map(Value::from).boxed()
}

/// A number of that range, often its minimum or its maximum.
fn number(range: std::ops::RangeInclusive<i64>) -> BoxedStrategy<Value> {
    count(range).prop_map(Value::from).boxed()
}

fn count(range: std::ops::RangeInclusive<i64>) -> BoxedStrategy<i64> {
    prop_oneof![1 => Just(*range.start()), 1 => Just(*range.end()), 2 => range].boxed()
}

fn flag() -> BoxedStrategy<Value> {
    any::<bool>().prop_map(Value::from).boxed()
}

/// An object in which each field is present, missing, or null. Templates often set a field to null.
fn object(fields: Vec<(&'static str, BoxedStrategy<Value>)>) -> BoxedStrategy<Value> {
    let present = |value: BoxedStrategy<Value>| prop_oneof![5 => value.prop_map(Some), 4 => Just(None), 1 => Just(Some(Value::Null))];
    let (names, values): (Vec<_>, Vec<_>) = fields
        .into_iter()
        .map(|(name, value)| (name, present(value)))
        .unzip();
    let pairs = move |values: Vec<Option<Value>>| {
        let fields = names
            .iter()
            .zip(values)
            .filter_map(|(name, value)| Some(((*name).to_owned(), value?)));
        Value::Object(fields.collect())
    };
    values.prop_map(pairs).boxed()
}

/// The object with these additional fields.
fn with(mut object: Value, fields: Value) -> Value {
    let (Some(target), Value::Object(fields)) = (object.as_object_mut(), fields) else {
        return object;
    };
    target.extend(fields);
    object
}

fn map(key: &str, value: BoxedStrategy<Value>) -> BoxedStrategy<Value> {
    let entries = btree_map(string_regex(key).unwrap(), value, 0..4);
    entries
        .prop_map(|entries| Value::Object(Map::from_iter(entries)))
        .boxed()
}

const LABEL: &str = "([a-z]{1,8}[.]example/)?[a-z][a-zA-Z0-9._-]{0,20}[a-z]";
const LABEL_VALUE: &str = "([A-Za-z0-9]([-A-Za-z0-9_.]{0,20}[A-Za-z0-9])?)?";
const DNS_NAME: &str = "[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?";

fn any_content() -> BoxedStrategy<Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        flag(),
        number(-5..=70_000),
        text("[ -~äöü\n#:]{0,30}")
    ];
    let inner = leaf.prop_recursive(3, 16, 4, |inner| {
        let key = string_regex("[A-Za-z/_][A-Za-z0-9_ -]{0,12}").unwrap();
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            btree_map(key, inner, 0..4).prop_map(|entries| Value::Object(Map::from_iter(entries))),
        ]
    });
    let key = string_regex("[a-z][a-z0-9_-]{0,12}").unwrap();
    btree_map(key, inner, 0..5)
        .prop_map(|entries| Value::Object(Map::from_iter(entries)))
        .boxed()
}

fn image() -> BoxedStrategy<Value> {
    let policy = one_of(&["Always", "Never", "IfNotPresent"]);
    let source =
        text("ghcr[.]io/[a-z]{1,8}/[a-z-]{1,20}[a-z](:[0-9][.][0-9])?(@sha256:[0-9a-f]{64})?");
    let whole = (source, object(vec![("pullPolicy", policy.clone())]));
    let parts = (
        text("[a-z]{1,9}[.]example(:5000)?(/[a-z]{1,5})?"),
        text("[a-z]{1,9}(/[a-z]{1,5})?"),
    );
    let parts = (
        parts,
        object(vec![
            ("version", text("[A-Za-z0-9_][A-Za-z0-9_.-]{0,10}")),
            ("pullPolicy", policy),
        ]),
    );
    prop_oneof![
        whole.prop_map(|(source, rest)| with(rest, json!({"source": source}))),
        parts.prop_map(|((repository, path), rest)| with(
            rest,
            json!({"repository": repository, "path": path})
        )),
    ]
    .boxed()
}

/// Requests up to the limits.
fn resources(names: &'static [&'static str]) -> BoxedStrategy<Value> {
    let amounts = |n: i64| {
        prop_oneof![
            Just(json!(n)),
            Just(json!(format!("{n}"))),
            Just(json!(format!("{}m", n * 1000)))
        ]
    };
    let entry = (1..100i64, 0..100i64)
        .prop_flat_map(move |(request, more)| (amounts(request), amounts(request + more)));
    let entries = vec((entry, any::<(bool, bool)>()), names.len());
    entries
        .prop_map(move |entries| {
            let mut resources = json!({"requests": {}, "limits": {}});
            for (name, ((request, limit), (has_request, has_limit))) in names.iter().zip(entries) {
                if has_request {
                    resources["requests"][name] = request;
                }
                if has_limit {
                    resources["limits"][name] = limit;
                }
            }
            resources
        })
        .boxed()
}

fn affinity() -> BoxedStrategy<Value> {
    let expression = |key, value| json!({"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]});
    (text("[a-z]{1,9}"), text(LABEL_VALUE), number(1..=100))
        .prop_map(move |(key, value, weight)| {
            let term = expression(key, value);
            json!({
                "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term.clone()]}},
                "podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
                    {"weight": weight, "podAffinityTerm": {"topologyKey": "kubernetes.io/hostname", "labelSelector": term}},
                ]},
            })
        })
        .boxed()
}

fn permissions() -> BoxedStrategy<Value> {
    let may = subsequence(
        vec![
            "start",
            "stop",
            "reset",
            "accessConsole",
            "takeConsole",
            "*",
        ],
        0..=6,
    );
    let who = (select(vec!["user", "role"]), text("[a-zA-Z0-9@. -]{1,20}"));
    let permission = (
        who,
        object(vec![("may", may.prop_map(|may| json!(may)).boxed())]),
    );
    let permission = permission.prop_map(|((kind, name), rest)| with(rest, json!({kind: name})));
    vec(permission, 0..4).prop_map(Value::from).boxed()
}

/// A size of at least 1 MiB in one of its many notations.
fn size(mebibytes: i64) -> BoxedStrategy<Value> {
    let mib = mebibytes;
    let spellings = vec![
        format!("{mib}Mi"),
        format!("{mib} MiB"),
        format!("{mib}MiB"),
        format!("{}", mib << 20),
        format!("{} B", mib << 20),
        format!("{}Ki", mib << 10),
        format!(" {}  ", mib << 20),
        format!("{}.{:03}Gi", mib / 1024, (mib % 1024) * 1000 / 1024),
        format!("{}.5 MiB", mib - 1),
        format!("{mib}.Mi"),
        format!("{}000m", mib << 20),
    ];
    // A fraction in Gi may be below 1 MiB, and users do not write a number without digits before the point.
    let spellings = spellings
        .into_iter()
        .filter(move |text| mib > 2 || !text.contains('.'))
        .collect::<Vec<_>>();
    select(spellings).prop_map(Value::from).boxed()
}

/// Maximum and current memory, with current at most maximum.
fn memory() -> BoxedStrategy<Value> {
    let decimal = one_of(&[
        "1G",
        "8 GB",
        "1e9",
        "2.5G",
        "1 TB",
        "4GB",
        "1500000k",
        "1500000 kB",
        "1T",
        "100Ti",
    ]);
    let maximum_only = decimal.prop_map(|maximum| json!({"maximumRam": maximum}));
    let both = (16..200_000i64).prop_flat_map(|maximum| {
        let current = prop_oneof![
            (8..maximum - 2).prop_flat_map(size).prop_map(Some),
            Just(None)
        ];
        (size(maximum + 1), current)
    });
    let both = both.prop_map(|(maximum, current)| match current {
        Some(current) => json!({"maximumRam": maximum, "currentRam": current}),
        None => json!({"maximumRam": maximum}),
    });
    prop_oneof![1 => maximum_only, 4 => both, 1 => Just(json!({}))].boxed()
}

/// CPUs in each notation of the Java VM-Operator. With a topology, QEMU must be able to complete the missing values.
fn cpus() -> BoxedStrategy<Value> {
    let plain =
        (count(1..=256), option::of(count(1..=288))).prop_map(|(maximum, current)| match current {
            Some(current) => json!({"maximumCpus": maximum, "currentCpus": current}),
            None => json!({"maximumCpus": maximum}),
        });
    let parts = (
        option::of(count(0..=4)),
        option::of(count(0..=2)),
        option::of(count(0..=8)),
        option::of(count(0..=2)),
    );
    let topology = (parts, 1..=3i64, any::<bool>()).prop_map(
        |((sockets, dies, cores, threads), factor, has_current)| {
            let given = [
                ("sockets", sockets),
                ("diesPerSocket", dies),
                ("coresPerDie", cores),
                ("threadsPerCore", threads),
            ];
            let fields = given
                .into_iter()
                .filter_map(|(name, n)| Some((name.to_owned(), json!(n?))))
                .collect();
            let product: i64 = [sockets, dies, cores, threads]
                .iter()
                .map(|n| n.unwrap_or(0).max(1))
                .product();
            let open = sockets == Some(0) || cores.unwrap_or(0) == 0 || threads.unwrap_or(0) == 0;
            let mut machine = json!({"cpuTopology": Value::Object(fields)});
            if has_current {
                machine["currentCpus"] = json!(if open { product * factor } else { product });
            }
            machine
        },
    );
    prop_oneof![plain, topology].boxed()
}

fn networks() -> BoxedStrategy<Value> {
    let device = || {
        one_of(&[
            "virtio-net",
            "virtio-net-pci",
            "e1000",
            "e1000e",
            "rtl8139",
            "vmxnet3",
        ])
    };
    let bridge = text("[a-z][a-z0-9._-]{0,14}");
    let mac = prop_oneof![
        text("[0-9A-Fa-f][02468ACEace](:[0-9A-Fa-f]{2}){5}"),
        text("[0-9a-f][02468ace](-[0-9a-f]{2}){5}")
    ];
    let tap = object(vec![
        ("device", device()),
        ("bridge", bridge),
        ("mac", mac.boxed()),
    ]);
    // A smaller network has no room for the pod, a name server and the guest.
    let mask = option::of(prop_oneof![
        (8..=29u8).prop_map(|n| n.to_string()),
        Just("255.255.255.0".to_owned())
    ]);
    let net = (any::<[u8; 4]>(), mask).prop_map(|([a, b, c, d], mask)| {
        let mask = mask.map(|mask| format!("/{mask}")).unwrap_or_default();
        json!(format!("{a}.{b}.{c}.{d}{mask}"))
    });
    let user = object(vec![("device", device()), ("net", net.boxed())]);
    let network = prop_oneof![
        tap.prop_map(|tap| json!({"tap": tap})),
        user.prop_map(|user| json!({"user": user}))
    ];
    let name = option::of(text("[a-z0-9]([-a-z0-9]{0,8}[a-z0-9])?"));
    let network = (network, name).prop_map(|(mut network, name)| {
        if let Some(name) = name {
            network["name"] = name;
        }
        network
    });
    vec(network, 0..5).prop_map(Value::from).boxed()
}

fn claim() -> BoxedStrategy<Value> {
    let modes = subsequence(
        vec!["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany"],
        1..=3,
    );
    let source = text(DNS_NAME)
        .prop_map(|name| json!({"kind": "PersistentVolumeClaim", "name": name}))
        .boxed();
    let requirement = json!({"matchExpressions": [{"key": "size", "operator": "Exists"}]});
    let selector = map(LABEL, text(LABEL_VALUE))
        .prop_map(move |labels| with(requirement.clone(), json!({"matchLabels": labels})));
    let spec = object(vec![
        ("accessModes", modes.prop_map(|modes| json!(modes)).boxed()),
        ("dataSource", source.clone()),
        ("dataSourceRef", source),
        ("resources", resources(&["storage"])),
        ("selector", selector.boxed()),
        (
            "storageClassName",
            prop_oneof![Just(json!("")), text(DNS_NAME)].boxed(),
        ),
        ("volumeMode", Just(json!("Block")).boxed()),
        ("volumeName", text(DNS_NAME)),
    ]);
    let metadata = object(vec![
        ("labels", map(LABEL, text(LABEL_VALUE))),
        ("annotations", map(LABEL, text("[ -~]{0,40}"))),
    ]);
    object(vec![("metadata", metadata), ("spec", spec)])
}

/// Disks with unique names, at most six CD drives, and unique positions in the boot order.
fn disks() -> BoxedStrategy<Value> {
    let name = prop_oneof![
        string_regex("[a-z0-9][-a-z0-9]{0,57}").unwrap(),
        string_regex("[a-z0-9][-a-z0-9]{57}").unwrap(),
    ];
    let image = prop_oneof![
        Just(String::new()),
        string_regex("[a-zA-Z0-9._-]{1,20}/[a-zA-Z0-9_. -]{1,20}[.]iso")
            .unwrap()
            .prop_filter("out", |image| !image.starts_with("../")),
        string_regex("https?://[a-z]{1,9}[.]example/[a-z/.]{1,30}[.]iso").unwrap(),
        Just("/var/local/vmop-image-repository/a.iso".to_owned()),
    ];
    let disk = prop_oneof![
        2 => (claim(), option::of(name)).prop_map(|(claim, name)| (claim, name, None)),
        1 => (string_regex("https?://[a-z]{1,9}[.]example/[a-z/.]{1,30}").unwrap(), any::<bool>()).prop_map(|(url, is_device)| {
            let mode = if is_device { "Block" } else { "Filesystem" };
            let claim = json!({"spec": {"volumeMode": mode, "resources": {"requests": {"storage": "1Gi"}}}});
            (json!({"claim": claim, "source": {"http": {"url": url}}}), None, None)
        }),
        1 => image.prop_map(|image| (Value::Null, None, Some(image))),
    ];
    let order = (0..100i64, vec(any::<bool>(), 12));
    (vec(disk, 0..12), order)
        .prop_map(|(disks, (first, ordered))| {
            let (mut seen, mut cds, mut result) =
                (std::collections::BTreeSet::new(), 0, Vec::new());
            for (n, ((claim, name, image), ordered)) in disks.into_iter().zip(ordered).enumerate() {
                let mut disk = match image {
                    Some(_) if cds == 6 => continue,
                    Some(image) => {
                        cds += 1;
                        json!({"cdrom": {"image": image}})
                    }
                    None if claim["source"].is_object() => {
                        json!({"volumeClaimTemplate": claim["claim"], "source": claim["source"]})
                    }
                    None => json!({"volumeClaimTemplate": claim}),
                };
                if let Some(name) = name.filter(|name| seen.insert(name.clone())) {
                    let template = &mut disk["volumeClaimTemplate"];
                    let metadata = with(template["metadata"].take(), json!({}));
                    let metadata = if metadata.is_null() {
                        json!({})
                    } else {
                        metadata
                    };
                    template["metadata"] = with(metadata, json!({"name": name}));
                }
                if ordered {
                    disk["bootindex"] = json!(first + i64::try_from(n).unwrap());
                }
                result.push(disk);
            }
            Value::from(result)
        })
        .boxed()
}

fn display() -> BoxedStrategy<Value> {
    let spice = object(vec![
        ("port", number(1..=65535)),
        ("server", text("[a-z0-9.-]{1,30}")),
        ("generateSecret", flag()),
        (
            "proxyUrl",
            text("https?://[a-z]{1,9}[.]example(:[0-9]{2,4})?"),
        ),
        ("streamingVideo", one_of(&["off", "all", "filter"])),
        ("usbRedirects", number(0..=14)),
    ]);
    object(vec![
        ("outputs", number(1..=16)),
        ("loggedInUser", text("[a-zA-Zäöü0-9._@ -]{0,20}")),
        ("spice", spice),
    ])
}

fn machine() -> BoxedStrategy<Value> {
    let date = "20[0-9]{2}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])(T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9])?";
    let models = [
        "host",
        "max",
        "EPYC",
        "Skylake-Server-v4,-hle,+pcid",
        "qemu64,vendor=GenuineIntel",
        "host,hv_relaxed=on",
    ];
    let machine = object(vec![
        ("state", one_of(&["Stopped", "Running"])),
        (
            "machineUuid",
            text("[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"),
        ),
        ("useTpm", flag()),
        (
            "firmware",
            one_of(&["bios", "uefi", "uefi-4m", "secure", "secure-4m"]),
        ),
        ("bootMenu", flag()),
        ("powerdownTimeout", number(0..=86400)),
        ("cpuModel", one_of(&models)),
        (
            "rtcBase",
            prop_oneof![one_of(&["utc", "localtime"]), text(date)].boxed(),
        ),
        ("rtcClock", one_of(&["rt", "host", "vm"])),
        ("networks", networks()),
        ("disks", disks()),
        ("display", display()),
    ]);
    (machine, memory(), cpus())
        .prop_map(|(machine, memory, cpus)| with(with(machine, memory), cpus))
        .boxed()
}

fn spec() -> BoxedStrategy<Value> {
    let nullable = |pattern| prop_oneof![3 => text(pattern), 1 => Just(Value::Null)].boxed();
    let service = object(vec![
        ("labels", map(LABEL, nullable(LABEL_VALUE))),
        ("annotations", map(LABEL, nullable("[ -~]{0,20}"))),
    ]);
    let cloud_init = object(vec![
        ("metaData", map("[a-z-]{1,15}", text("[ -~]{0,20}"))),
        ("userData", any_content()),
        ("networkConfig", any_content()),
    ]);
    let spec = object(vec![
        ("image", image()),
        ("resources", resources(&["cpu", "memory"])),
        ("nodeName", text("[a-z0-9]([-a-z0-9.]{0,20}[a-z0-9])?")),
        ("nodeSelector", map(LABEL, text(LABEL_VALUE))),
        ("affinity", affinity()),
        (
            "runnerTemplate",
            object(vec![
                ("source", text("[A-Za-z-]{1,20}[.]ftl[.]yaml")),
                ("update", flag()),
            ]),
        ),
        ("guestShutdownStops", flag()),
        ("loadBalancerService", service),
        ("cloudInit", cloud_init),
        ("permissions", permissions()),
        (
            "pools",
            vec(string_regex(DNS_NAME).unwrap(), 0..3)
                .prop_map(|pools| json!(pools))
                .boxed(),
        ),
        (
            "loggingProperties",
            text("(handlers=java[.]util[.]logging[.]ConsoleHandler\n)?([.]level=(FINE|INFO)\n)?"),
        ),
    ]);
    (spec, machine())
        .prop_map(|(spec, machine)| with(spec, json!({"vm": machine})))
        .boxed()
}
