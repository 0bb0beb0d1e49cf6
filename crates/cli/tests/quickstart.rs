//! `./quickstart` in environments other than the developer's: a root of its own, in which an ordinary user must not read all.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Makes a root in a mount namespace, and runs a command in it as an ordinary user who has no home: `bash -c ROOT EMPTY CHECKOUT
/// PROGRAM FAKE COMMAND..`. Below `/usr/share` are directories and a file that only root may read.
const ROOT: &str = r#"
set -euo pipefail
root="$1" checkout="$2" program="$3" fake="$4"
shift 4
mount -t tmpfs -o mode=755 none "$root"
mkdir -p "$root"/{usr/share,etc,proc,dev,fake,full,'check out'} "$root/tmp dir"
for directory in /bin /sbin /lib* /usr/bin /usr/sbin /usr/lib* /etc/alternatives; do
    if [ -L "$directory" ]; then
        cp -P "$directory" "$root$directory"
    elif [ -d "$directory" ]; then
        mkdir "$root$directory"
        mount --bind "$directory" "$root$directory"
    fi
done
# As if no Rust were installed.
[ ! -e "$root/usr/bin/cargo" ] || mount --bind /dev/null "$root/usr/bin/cargo"
mount --rbind /proc "$root/proc"
mount --rbind /dev "$root/dev"
mount --bind "$fake" "$root/fake"
mount --bind "$checkout" "$root/check out"
touch "$root/onefold"
mount --bind "$program" "$root/onefold"
mount -t tmpfs -o noexec,mode=777 none "$root/tmp dir"
mount -t tmpfs -o size=8m,mode=777 none "$root/full"
mkdir -p "$root"/usr/share/{polkit-1/rules.d,listed,words}
for i in {1..400}; do seq "$i" "$((i + 900))" >"$root/usr/share/words/$i"; done
cp "$root"/usr/share/words/{1,2,3} "$root/usr/share/polkit-1/rules.d"
cp "$root"/usr/share/words/{1,2,3} "$root/usr/share/listed"
chmod 0700 "$root/usr/share/polkit-1/rules.d"
chmod 0744 "$root/usr/share/listed"
chmod 0600 "$root"/usr/share/words/3*
umask 077
exec chroot --userspec=4321:4321 "$root" /usr/bin/env -i PATH=/usr/bin:/bin HOME=/home/gone LC_ALL=de_DE.UTF-8 \
    "TMPDIR=/tmp dir" QUICKSTART_MB=3 "$@" </dev/null
"#;

/// A cargo without a toolchain, and one whose build fails or succeeds.
const CARGO: &str = r#"#!/usr/bin/bash
case "$1:$SAYS" in
    --version:) echo 'error: no default toolchain is configured' >&2; exit 1 ;;
    --version:*) echo "cargo $SAYS" ;;
    build:99.0.0) echo 'error: network unreachable' >&2; exit 101 ;;
    build:*) echo '{"reason":"compiler-artifact","executable":"/fake/a place/onefold","fresh":true}' ;;
esac
"#;

/// Runs quickstart in the root, after settings and with arguments.
fn quickstart(fake: &Path, settings: &[&str], arguments: &[&str]) -> Output {
    let root = tempfile::tempdir().unwrap();
    Command::new("unshare")
        .args(["--mount", "--propagation", "private", "bash", "-c", ROOT, "bash"])
        .arg(root.path())
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap())
        .arg(env!("CARGO_BIN_EXE_onefold"))
        .arg(fake)
        .args(settings)
        .args(["/usr/bin/bash", "/check out/quickstart"])
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// Writes a program of the root.
fn program(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
    fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
}

#[test]
fn quickstart_works_for_an_ordinary_user_and_each_failure_names_its_cause() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let fake = tempfile::tempdir().unwrap();
    fs::set_permissions(fake.path(), PermissionsExt::from_mode(0o755)).unwrap();
    program(&fake.path().join("rust/cargo"), CARGO);
    program(&fake.path().join("a place/onefold"), "#!/usr/bin/bash\nexec /onefold \"$@\"\n");
    program(&fake.path().join("broken/onefold"), "#!/usr/bin/bash\necho 'out of order' >&2; exit 9\n");
    program(&fake.path().join("busybox/find"), "#!/usr/bin/bash\necho 'find: unrecognized: -printf' >&2; exit 1\n");
    program(&fake.path().join("few/readlink"), "#!/usr/bin/bash\nexec /usr/bin/readlink \"$@\"\n");

    let with_rust = "PATH=/fake/rust:/usr/bin:/bin";
    // Variables of the user's own must not reach the program.
    let output = quickstart(fake.path(), &[with_rust, "SAYS=98.0.0", "ONEFOLD_COMPAT=restic", "ONEFOLD_MEMORY=1"], &[]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.ends_with("quickstart: ok, everything restored is identical\n"), "{text}");

    for (settings, arguments, cause) in [
        (&["HOME="][..], &[][..], "there is no cargo"),
        (&[with_rust], &[], "no default toolchain is configured"),
        (&[with_rust, "SAYS=1.2.3"], &[], "found 1.2.3"),
        (&[with_rust, "SAYS=99.0.0"], &[], "network unreachable"),
        (&["PATH=/fake/few"], &[], "are missing: awk"),
        (&["PATH=/fake/busybox:/usr/bin"], &[], "unrecognized: -printf"),
        (&["TMPDIR=/usr"], &[], "no directory can be made in /usr"),
        (&["TMPDIR=/gone"], &[], "no directory can be made in /gone"),
        (&["TMPDIR=/full"], &["--program", "/onefold"], "MB are free"),
        (&["QUICKSTART_MB=many"], &[], "QUICKSTART_MB=many"),
        (&[], &["--program", "/fake/broken/onefold"], "out of order"),
        (&[], &["--program", "/gone"], "No such file"),
        (&[], &["--program"], "needs a path"),
        (&[], &["--fast"], "usage"),
    ] {
        let output = quickstart(fake.path(), settings, arguments);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && text.contains(cause), "{settings:?} {arguments:?}: {text}");
    }
}
