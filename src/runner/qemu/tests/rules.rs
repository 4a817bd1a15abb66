//! The options that each argument depends on, found with many choices: a table that a person can check, option by option.

use crate::runner::qemu::tests::line::Line;
use crate::runner::qemu::tests::options::{Choice, OPTIONS};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// Maximum number of options that an argument depends on.
const MOST: usize = 3;

/// The table: each argument in its place on the command line, with the parts that it always has. `if` has the condition of the
/// argument. The lines below it have the conditional parts.
pub fn table(machines: &[(Choice, Vec<Line>)]) -> String {
    let mut text = String::new();
    for name in &in_order(machines) {
        let all: Vec<(&Choice, bool)> = machines
            .iter()
            .map(|(choice, lines)| (choice, lines.iter().any(|line| line.name == *name)))
            .collect();
        let there: Vec<(&Choice, &Line)> = machines
            .iter()
            .filter_map(|(choice, lines)| {
                Some((choice, lines.iter().find(|line| line.name == *name)?))
            })
            .collect();
        let mut parts: Vec<&String> = Vec::new();
        for part in there.iter().flat_map(|(_, line)| &line.parts) {
            if !parts.contains(&part) {
                parts.push(part);
            }
        }
        let has = |part: &String| {
            there
                .iter()
                .map(|(choice, line)| (*choice, line.parts.contains(part)))
                .collect::<Vec<_>>()
        };
        let conditions: Vec<(&String, String)> = parts
            .into_iter()
            .map(|part| (part, condition(part, &has(part))))
            .collect();
        let (always, mut sometimes): (Vec<_>, Vec<_>) = conditions
            .into_iter()
            .partition(|(_, when)| when.is_empty());
        let always: String = always.iter().map(|(part, _)| format!(" {part}")).collect();
        writeln!(text, "{name}{always}{}", reported(&condition(name, &all))).unwrap();
        sometimes.sort();
        for (part, when) in sometimes {
            writeln!(text, "    {part}{}", reported(&when)).unwrap();
        }
    }
    text
}

fn reported(condition: &str) -> String {
    if condition.is_empty() {
        String::new()
    } else {
        format!("   if {condition}")
    }
}

/// All names, in the order that agrees with each command line.
fn in_order(machines: &[(Choice, Vec<Line>)]) -> Vec<String> {
    let mut before: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut seen: Vec<&str> = Vec::new();
    for (_, lines) in machines {
        for (n, line) in lines.iter().enumerate() {
            if !seen.contains(&line.name.as_str()) {
                seen.push(&line.name);
            }
            let earlier = before.entry(&line.name).or_default();
            earlier.extend(n.checked_sub(1).map(|n| lines[n].name.as_str()));
        }
    }
    let mut ordered: Vec<String> = Vec::new();
    while !seen.is_empty() {
        let free = |name: &&str| {
            before[name]
                .iter()
                .all(|earlier| ordered.iter().any(|done| done == earlier))
        };
        let next = seen
            .iter()
            .position(free)
            .unwrap_or_else(|| panic!("no order fits all: {seen:?}"));
        ordered.push(seen.remove(next).to_owned());
    }
    ordered
}

/// The condition that holds exactly where the second of each pair does, by as few options as possible; empty if always.
fn condition(what: &str, tried: &[(&Choice, bool)]) -> String {
    for count in 0..=MOST {
        for options in subsets(OPTIONS.len(), count) {
            if decide(&options, tried) {
                return condition_text(&options, tried).unwrap_or_else(|| panic!("{what}: never"));
            }
        }
    }
    panic!("{what} depends on more than {MOST} options");
}

fn subsets(of: usize, count: usize) -> Vec<Vec<usize>> {
    if count == 0 {
        return vec![Vec::new()];
    }
    let shorter = subsets(of, count - 1);
    let longer = |set: Vec<usize>| {
        let from = set.last().map_or(0, |last| last + 1);
        (from..of).map(move |next| [set.clone(), vec![next]].concat())
    };
    shorter.into_iter().flat_map(longer).collect()
}

/// Whether their values alone decide.
fn decide(options: &[usize], tried: &[(&Choice, bool)]) -> bool {
    let mut known: BTreeMap<usize, bool> = BTreeMap::new();
    let cell = |choice: &Choice| {
        options
            .iter()
            .fold(0, |cell, option| cell * 8 + choice[*option])
    };
    tried
        .iter()
        .all(|(choice, holds)| *known.entry(cell(choice)).or_insert(*holds) == *holds)
}

/// None if it holds nowhere.
fn condition_text(options: &[usize], tried: &[(&Choice, bool)]) -> Option<String> {
    let Some((first, rest)) = options.split_first() else {
        return tried
            .first()
            .is_some_and(|(_, holds)| *holds)
            .then(String::new);
    };
    let (name, values) = OPTIONS[*first];
    let mut groups: Vec<(String, Vec<&str>)> = Vec::new();
    for (n, value) in values.iter().enumerate() {
        let with: Vec<_> = tried
            .iter()
            .copied()
            .filter(|(choice, _)| choice[*first] == n)
            .collect();
        let Some(when) = condition_text(rest, &with) else {
            continue;
        };
        match groups.iter_mut().find(|(known, _)| *known == when) {
            Some((_, values)) => values.push(value),
            None => groups.push((when, vec![value])),
        }
    }
    if let [(when, of)] = groups.as_slice()
        && of.len() == values.len()
    {
        return Some(when.clone());
    }
    let tell = |(when, values): &(String, Vec<&str>)| {
        let values = format!("{name} is {}", values.join("|"));
        if when.is_empty() {
            values
        } else {
            format!("{values} and {when}")
        }
    };
    let reported: Vec<String> = groups.iter().map(tell).collect();
    (!reported.is_empty()).then(|| {
        if reported.len() == 1 {
            reported.concat()
        } else {
            format!("({})", reported.join(" or "))
        }
    })
}

#[test]
fn condition_names_only_the_deciding_options() {
    let choices = crate::runner::qemu::tests::options::choices(1000);
    let when = |holds: fn(&Choice) -> bool| {
        condition(
            "x",
            &choices
                .iter()
                .map(|choice| (choice, holds(choice)))
                .collect::<Vec<_>>(),
        )
    };
    assert_eq!(when(|_| true), "");
    assert_eq!(when(|choice| choice[0] > 2), "firmware is secure|secure-4m");
    assert_eq!(
        when(|choice| choice[2] == 1 && choice[1] == 0),
        "bootMenu is no and useTpm is yes"
    );
    let either = "(bootMenu is no and useTpm is yes or bootMenu is yes and useTpm is no)";
    assert_eq!(when(|choice| choice[1] != choice[2]), either);
}
