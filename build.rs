//! Embeds the built pages of the web console into the program.

fn main() {
    #[cfg(feature = "web")]
    memory_serve::load_directory_with_embed("src/web/dist", true);
}
