//! Random changes. Every second one is of one field of the schema, field after field, at any depth of lists. Of the
//! others, fields of a VM outside of lists get the values of another VM, or are removed. Some get a mutated value.
//!
//! The other VMs come from the generator, the schema, the examples, and one VM with all scheduling fields. Together
//! they have every field except those that fill a PVC from another one.

use crate::changes::placed;
use crate::changes::schema::Field;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;
use support::{generator, mutation};

/// Random numbers, equal for equal seeds.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64, n: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (n + 1).wrapping_mul(0xD1B5_4A32_D192_ED03))
    }

    pub fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % limit.max(1) as u64).unwrap_or_default()
    }
}

/// All VMs to choose from, equal for equal seeds.
pub fn specs(seed: u64) -> Vec<Value> {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let generated = generator::specs(bytes, 400);
    let examples = examples();
    // Some fields are only in the examples. They are repeated so that a random choice reaches these fields.
    let specs = generated
        .into_iter()
        .chain(examples.iter().cycle().take(100).cloned())
        .chain([placed::spec()]);
    specs
        .enumerate()
        .map(|(n, spec)| startable(n, spec))
        .collect()
}

fn examples() -> Vec<Value> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let mut paths: Vec<_> = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.retain(|path| {
        path.extension()
            .is_some_and(|extension| extension == "yaml")
    });
    paths.sort();
    let texts = paths
        .iter()
        .map(|path| std::fs::read_to_string(path).unwrap());
    let objects = texts.flat_map(|text| {
        let documents = text.split("\n---\n");
        let objects = documents.map(|text| serde_saphyr::from_str::<Value>(text).unwrap());
        objects.collect::<Vec<_>>()
    });
    let vms = objects.filter(|object| object["kind"] == "VirtualMachine");
    vms.map(|mut vm| vm["spec"].take()).collect()
}

/// The storage class with volumes that can be expanded.
pub const CLASS_THAT_GROWS: &str = "grows";

/// A spec before and after a change.
pub struct Change {
    pub before: Value,
    pub after: Value,
    /// The paths that differ.
    pub fields: Vec<String>,
}

/// The same spec with valid PVCs and pods. A definition cannot check all of that, and a VM that does not start cannot
/// be changed while it runs. Disks have different sizes, and every second one can be expanded.
fn startable(n: usize, mut spec: Value) -> Value {
    if let Some(fields) = spec.as_object_mut() {
        fields.remove("nodeName");
    }
    // The test itself requests restarts.
    if let Some(machine) = spec["vm"].as_object_mut() {
        machine.remove("restartRequest");
    }
    for (i, disk) in spec["vm"]["disks"]
        .as_array_mut()
        .into_iter()
        .flatten()
        .enumerate()
    {
        let Some(template) = disk
            .get_mut("volumeClaimTemplate")
            .filter(|template| !template.is_null())
        else {
            continue;
        };
        let claim = &mut template["spec"];
        if let Some(fields) = claim.as_object_mut() {
            fields.remove("dataSource");
            fields.remove("dataSourceRef");
        }
        claim["resources"] = json!({"requests": {"storage": format!("{}Gi", 1 + (n + i) % 3)}});
        if (n / 3 + i).is_multiple_of(2) {
            claim["storageClassName"] = CLASS_THAT_GROWS.into();
        }
    }
    spec
}

/// The distance between two consecutively changed fields. Neighbours in the schema are far apart, so that a short run
/// changes fields of each part.
const STRIDE: usize = 101;

/// The field of the change with that number, or none for every second number. Each field occurs once in `2 *
/// fields.len()` numbers, wherever these begin.
pub fn field_of_change(fields: &[Field], seed: u64, n: u64) -> Option<&Field> {
    let count = fields.len();
    // All fields occur only if the two numbers have no common divisor.
    let stride = (STRIDE..).find(|stride| gcd(*stride, count) == 1)?;
    let at = |number: u64| usize::try_from(number % count as u64).unwrap();
    n.is_multiple_of(2)
        .then(|| &fields[(at(seed) + at(n / 2) * stride) % count])
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The change with that number.
pub fn change(specs: &[Value], fields: &[Field], seed: u64, n: u64) -> Change {
    let mut random = Random::new(seed, n);
    let single =
        field_of_change(fields, seed, n).and_then(|field| field.change(specs, &mut random));
    single.unwrap_or_else(|| of_another(specs, &mut random))
}

/// One or two fields of a running VM, with the values of another VM.
fn of_another(specs: &[Value], random: &mut Random) -> Change {
    let mut before = specs[random.below(specs.len())].clone();
    before["vm"]["state"] = "Running".into();
    let other = &specs[random.below(specs.len())];
    if random.below(8) == 0 {
        return nonsense(before, random);
    }
    let mut after = before.clone();
    let wanted = 1 + random.below(2);
    let mut fields = Vec::new();
    // Fields that are equal in both change nothing.
    for _ in 0..50 {
        let mut paths = BTreeSet::new();
        paths_of(&before, "", &mut paths);
        paths_of(other, "", &mut paths);
        let paths: Vec<String> = paths.into_iter().collect();
        let path = &paths[random.below(paths.len())];
        if before.pointer(path) != other.pointer(path)
            && set_at(&mut after, path, other.pointer(path))
        {
            fields.push(format!("spec{}", path.replace('/', ".")));
        }
        if fields.len() == wanted {
            break;
        }
    }
    Change {
        before,
        after,
        fields,
    }
}

/// One or two mutated values of a running VM, at any path.
fn nonsense(before: Value, random: &mut Random) -> Change {
    let mut seed = [0; 32];
    seed.fill_with(|| u8::try_from(random.below(256)).unwrap());
    let after = mutation::mutated(vec![before.clone()], seed, 1).remove(0);
    let (mut was, mut is) = (BTreeSet::new(), BTreeSet::new());
    leaves_of(&before, "spec", &mut was);
    leaves_of(&after, "spec", &mut is);
    let fields = is
        .difference(&was)
        .map(|(path, value)| format!("{path} = {value:.60}"))
        .collect();
    Change {
        before,
        after,
        fields,
    }
}

/// All values in it, with their paths.
fn leaves_of(value: &Value, path: &str, leaves: &mut BTreeSet<(String, String)>) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            fields
                .iter()
                .for_each(|(name, value)| leaves_of(value, &format!("{path}.{name}"), leaves));
        }
        Value::Array(items) if !items.is_empty() => {
            items
                .iter()
                .enumerate()
                .for_each(|(i, item)| leaves_of(item, &format!("{path}[{i}]"), leaves));
        }
        other => drop(leaves.insert((path.to_owned(), other.to_string()))),
    }
}

/// `disks[]` for `disks[3]`.
fn of_any_item(path: &str) -> String {
    let parts: Vec<&str> = path
        .split('[')
        .map(|part| part.trim_start_matches(|c: char| c.is_ascii_digit()))
        .collect();
    parts.join("[")
}

impl Change {
    /// The paths that it sets, removes or changes, with list indices replaced.
    pub fn places(&self) -> BTreeSet<String> {
        let (mut was, mut is) = (BTreeSet::new(), BTreeSet::new());
        leaves_of(&self.before, "spec", &mut was);
        leaves_of(&self.after, "spec", &mut is);
        was.symmetric_difference(&is)
            .map(|(path, _)| of_any_item(path))
            .collect()
    }
}

/// All fields, at any depth, outside of lists.
fn paths_of(value: &Value, path: &str, paths: &mut BTreeSet<String>) {
    for (name, value) in value.as_object().into_iter().flatten() {
        let path = format!("{path}/{}", name.replace('~', "~0").replace('/', "~1"));
        paths_of(value, &path, paths);
        paths.insert(path);
    }
}

/// Sets or removes a value at that path. Returns whether the path exists.
fn set_at(target: &mut Value, path: &str, value: Option<&Value>) -> bool {
    let Some((parent, name)) = path.rsplit_once('/') else {
        return false;
    };
    let name = name.replace("~1", "/").replace("~0", "~");
    let Some(parent) = target.pointer_mut(parent).and_then(Value::as_object_mut) else {
        return false;
    };
    match value {
        Some(value) => parent.insert(name, value.clone()).as_ref() != Some(value),
        None => parent.remove(&name).is_some(),
    }
}
