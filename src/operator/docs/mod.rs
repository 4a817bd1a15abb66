//! (pure) Documentation that is made of the program: `vm-operator docs`.
//!
//! | module | what |
//! |---|---|
//! | [`troubleshooting`] | what can be in a VM's way, and the next step |
//! | [`reference`] | everything that has a name: fields, settings, conditions, metrics, annotations, labels |
//! | [`fields`] | the part of it that is read off the definition |
//! | [`deviations`] | how this operator differs from the Java VM-Operator |
//! | [`later`] | fields that change nothing of what is made |

mod deviations;
mod fields;
mod later;
mod reference;
mod troubleshooting;

pub use deviations::{DEVIATIONS, REJECTED};
pub use later::LATER;

/// The files, by name.
#[must_use]
pub fn files() -> Vec<(&'static str, String)> {
    vec![
        ("troubleshooting.md", troubleshooting::troubleshooting()),
        ("reference.md", reference::reference()),
        ("deviations.md", deviations::deviations()),
    ]
}

/// A cell of a table: in one line, without what would end the cell.
fn cell(text: &str) -> String {
    text.trim().replace('\n', " ").replace('|', "\\|")
}
