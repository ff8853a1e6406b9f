//! A release holds the console as it lies in web/dist when it is built; any other build reads it from there.

fn main() {
    let release = std::env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let watch_path = if release {
        "../../web/dist"
    } else {
        "build.rs"
    };
    println!("cargo::rerun-if-changed={watch_path}");
}
