//! The compiler of the kernels: a library in a Python package, which `pip` fetches and verifies.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::command::run_tool;

/// Name and version of the compiler, as `kernels.bin` has them.
pub(super) const COMPILER: &str = "nvidia-cuda-nvrtc-cu12 12.9.86";

/// Packages that pip fetches, with the SHA-256 of the package.
const REQUIREMENT: &str = "nvidia-cuda-nvrtc-cu12==12.9.86 \
                           --hash=sha256:210cf05005a447e29214e9ce50851e83fc5f4358df8b453155d5e1918094dcb4\n";

/// The library, the one that it loads, and their BLAKE3.
const LIBRARIES: [(&str, &str); 2] = [
    ("libnvrtc.so.12", "856c4011f982839cd87e541fd329722af5868d0f20a1cda9a22b8a1abb58ff73"),
    ("libnvrtc-builtins.so.12.9", "30a1255ef1f160b17ffea04f49f50a40860d6f572d3712b4848573f61396c425"),
];

/// Their paths in the package.
const IN_PACKAGE: &str = "nvidia/cuda_nvrtc/lib";

/// Takes the libraries out of the package: the first argument has it, the second is where they go.
const UNPACK: &str = "import glob, sys, zipfile
package = zipfile.ZipFile(glob.glob(sys.argv[1] + '/*.whl')[0])
for name in sys.argv[3:]:
    package.extract(name, sys.argv[2])
";

/// Returns the path of the library, below the build directory. Fetches it if it is not there.
pub(super) fn library() -> Result<PathBuf> {
    let program = std::env::current_exe().context("find this program")?;
    let target = program.parent().and_then(Path::parent).context("find the build directory")?;
    let directory = target.join("nvrtc-12.9.86");
    if !directory.is_dir() {
        fetch(target, &directory)?;
    }
    for (name, checksum) in LIBRARIES {
        let path = directory.join(name);
        let bytes = std::fs::read(&path).with_context(|| format!("read {}", path.display()))?;
        let found = blake3::hash(&bytes).to_hex();
        ensure!(found.as_str() == checksum, "{} has the BLAKE3 {found}; remove its directory", path.display());
    }
    Ok(directory.join(LIBRARIES[0].0))
}

/// Fetches the package into a temporary directory and moves its libraries to `directory`.
fn fetch(target: &Path, directory: &Path) -> Result<()> {
    println!("kernels: fetching {COMPILER}, 90 MB");
    let scratch = target.join(format!("nvrtc-{}.partial", std::process::id()));
    std::fs::create_dir_all(&scratch).context("create a directory for the compiler")?;
    let fetched = fetch_into(&scratch, directory);
    let removed = std::fs::remove_dir_all(&scratch).context("remove the temporary directory");
    fetched.context("fetch the compiler of the kernels; it needs a network, once").and(removed)
}

fn fetch_into(scratch: &Path, directory: &Path) -> Result<()> {
    let environment = scratch.join("python");
    let python = std::env::var_os("PYTHON").unwrap_or_else(|| "python3".into());
    run_tool(Command::new(python).args(["-m", "venv"]).arg(&environment))?;
    let python = environment.join("bin/python3");
    let requirement = scratch.join("requirements.txt");
    std::fs::write(&requirement, REQUIREMENT).context("write what pip fetches")?;
    let options = ["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--require-hashes", "--no-deps"];
    let packages = scratch.join("packages");
    let mut pip = Command::new(&python);
    run_tool(pip.args(options).arg("--only-binary=:all:").arg("--dest").arg(&packages).arg("-r").arg(&requirement))?;
    let names = LIBRARIES.map(|(name, _)| format!("{IN_PACKAGE}/{name}"));
    let unpacked = scratch.join("unpacked");
    run_tool(Command::new(&python).args(["-c", UNPACK]).arg(&packages).arg(&unpacked).args(names))?;
    std::fs::rename(unpacked.join(IN_PACKAGE), directory).context("move the compiler to its directory")
}
