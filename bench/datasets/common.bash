# What the scripts of this directory share; sourced, not run.

set -Eeuo pipefail
export LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive
name="$(basename "$0")"

fail() {
    printf '%s: %s\n' "$name" "$*" >&2
    exit 1
}

trap 'printf "%s: line %s failed with exit code %s: %s\n" "$name" "$LINENO" "$?" "$BASH_COMMAND" >&2' ERR

# Sets `target` and `scale` from TARGET_DIR [--scale S]; the first argument is the scale if none is given.
parse_arguments() {
    scale="$1"
    target=
    shift
    while [ $# -gt 0 ]; do
        case "$1" in
            -h | --help) sed -n '2,/^[^#]/{ s/^# \{0,1\}//p }' "$0"; exit 0 ;;
            --scale) [ $# -ge 2 ] || fail '--scale needs a value'; scale="$2"; shift 2 ;;
            --scale=*) scale="${1#--scale=}"; shift ;;
            -*) fail "unknown option $1" ;;
            *) [ -z "$target" ] || fail "one target directory, not also $1"; target="$1"; shift ;;
        esac
    done
    [ -n "$target" ] || fail "usage: $name TARGET_DIR [--scale S]"
    mkdir -p "$target"
    target="$(realpath "$target")"
}

# Fails unless the scale is a whole number from 1 on.
need_number() {
    [[ "$scale" =~ ^[1-9][0-9]*$ ]] || fail "--scale $scale: a whole number from 1 on is wanted"
}

# Installs the package of a command that is missing: need COMMAND PACKAGE.
need() {
    command -v "$1" >/dev/null 2>&1 && return
    [ "$(id -u)" -eq 0 ] || fail "needs $1 (package $2), and only root can install it"
    printf '%s: installing %s\n' "$name" "$2" >&2
    apt-get install -y -q --no-install-recommends "$2" >/dev/null || fail "$2 cannot be installed; apt-get update first?"
}

# Says what was made: a line for each version, and their number.
report() {
    local version count=0
    for version in "$@"; do
        printf '%s: %s bytes in %s files, %s bytes on disk\n' "$version" \
            "$(find "$version" -type f -printf '%s\n' | awk '{ sum += $1 } END { printf "%.0f", sum }')" \
            "$(find "$version" -type f | wc -l)" "$(du -s --block-size=1 "$version" | cut -f1)"
        count=$((count + 1))
    done
    printf '%s: %s versions in %s\n' "$name" "$count" "$target"
}
