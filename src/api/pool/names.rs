//! Names that other programs see.

use crate::api::hex;
use sha2::{Digest, Sha256};

/// Field manager of the pool controller.
pub const MANAGER_POOLS: &str = "vm-operator-pools";
/// `action` of the pool controller's events.
pub const ACTION_ASSIGN: &str = "Assign";

/// Annotation of an assignment that the operator has created for a `status.assignment` of the Java VM-Operator.
pub const ANNOTATION_ADOPTED: &str = "vmoperator.jdrupes.org/adopted";

/// Hexadecimal digits of the hash in the name of an assignment.
const HASH_DIGITS: usize = 32;

/// The name of the assignment of that user in that pool. So the API server ensures that there is only one.
#[must_use]
pub fn assignment(pool: &str, user: &str) -> String {
    let hash = Sha256::new()
        .chain_update(pool)
        .chain_update([0])
        .chain_update(user)
        .finalize();
    let hash = hex(hash.iter());
    format!("a-{}", hash.get(..HASH_DIGITS).unwrap_or(&hash))
}

/// Length of the longest name of a user that the agent in the guest logs in.
const LOGIN_MAX: usize = 64;

/// Whether the agent in the guest may log that user in. The agent runs as root, and guests use the name in scripts.
#[must_use]
pub fn is_login_allowed(user: &str) -> bool {
    let is_letter = |c: char| c.is_ascii_alphanumeric() || c == '_';
    user != "root"
        && user.len() <= LOGIN_MAX
        && user.starts_with(is_letter)
        && user.chars().all(|c| is_letter(c) || ".@-".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_names_are_logged_in() {
        for (user, is_allowed) in [
            ("anna", true),
            ("anna.b-c@example.org", true),
            ("_backup1", true),
            ("root", false),
            ("", false),
            ("-rf", false),
            (".anna", false),
            ("anna berta", false),
            ("anna\nlogout", false),
            ("änna", false),
        ] {
            assert_eq!(is_login_allowed(user), is_allowed, "{user:?}");
        }
        assert!(is_login_allowed(&"a".repeat(64)) && !is_login_allowed(&"a".repeat(65)));
    }

    #[test]
    fn name_depends_on_pool_and_user() {
        // printf 'office\0anna' | sha256sum
        assert_eq!(
            assignment("office", "anna"),
            "a-38ccd35e1e98c74ccbbfea3ed622f02e"
        );
        assert_ne!(assignment("a", "bc"), assignment("ab", "c"));
    }
}
