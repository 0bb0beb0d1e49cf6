//! Compiles the kernels of devices for the processor, with the feature `host-kernels`, for tests only.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "host-kernels")]
    host::build();
}

#[cfg(feature = "host-kernels")]
mod host {
    use std::path::{Path, PathBuf};

    const SOURCES: &str = "kernels";

    /// Programs that tests run: the variable that has the path, and the sanitizers.
    const PROGRAMS: [(&str, &str); 2] =
        [("ONEFOLD_RACES", "-fsanitize=thread"), ("ONEFOLD_BOUNDS", "-fsanitize=address,undefined")];

    pub(super) fn build() {
        println!("cargo::rerun-if-changed={SOURCES}");
        compiler().opt_level(2).file(format!("{SOURCES}/launch.cpp")).compile("onefold_kernels");
        let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
        for (variable, sanitizers) in PROGRAMS {
            let program = out.join(variable.to_lowercase());
            link(sanitizers, &program);
            println!("cargo::rustc-env={variable}={}", program.display());
        }
        let library = out.join("libcuda-standin.so");
        stand_in(&library);
        println!("cargo::rustc-env=ONEFOLD_STANDIN={}", library.display());
    }

    /// Builds the library in place of the driver of devices.
    fn stand_in(library: &Path) {
        let mut command = compiler().opt_level(2).pic(true).get_compiler().to_command();
        command.args(["-shared", "-fvisibility=hidden"]).arg(format!("{SOURCES}/standin.cpp")).arg("-o").arg(library);
        let status = command.status().expect("the C++ compiler starts");
        assert!(status.success(), "{command:?}: {status}");
    }

    fn compiler() -> cc::Build {
        let mut build = cc::Build::new();
        build.cpp(true).std("c++20").warnings(true).extra_warnings(true).flag("-Wno-unknown-pragmas");
        build
    }

    /// Builds `races.cpp` with sanitizers as a program.
    fn link(sanitizers: &str, program: &Path) {
        let mut command = compiler().opt_level(1).debug(true).get_compiler().to_command();
        command.args([sanitizers, "-fno-sanitize-recover=all", "-pthread"]);
        command.arg(format!("{SOURCES}/races.cpp")).arg("-o").arg(program);
        let status = command.status().expect("the C++ compiler starts");
        assert!(status.success(), "{command:?}: {status}");
    }
}
