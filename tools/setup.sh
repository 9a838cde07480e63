# Shell functions of ./demo, ./test and the Makefile: get packages, a Python environment and a build, each only
# where it is missing, so that a second run does nothing twice. Sourced from the root of the repository; POSIX sh.

# ath_need_packages NAME...: Debian packages that are not installed yet (root or sudo).
ath_need_packages() {
    missing=""
    for package in "$@"; do
        dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q "ok installed" || missing="$missing $package"
    done
    [ -n "$missing" ] || return 0
    echo "Installing:$missing" >&2
    sudo=""
    if [ "$(id -u)" != 0 ]; then
        command -v sudo >/dev/null || { echo "error: run as root, or install sudo, or install these yourself:$missing" >&2; exit 1; }
        sudo=sudo
    fi
    $sudo apt-get update -qq >&2
    # shellcheck disable=SC2086
    DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends $missing >&2
}

# ath_need_python FOLDER REQUIREMENTS: a virtual environment, made again when the requirements changed.
ath_need_python() {
    cmp -s "$2" "$1/requirements.txt" && return 0
    echo "Making the Python environment $1" >&2
    rm -rf "$1"
    mkdir -p "$(dirname "$1")"
    python3 -m venv "$1" >&2
    "$1/bin/pip" install -q --disable-pip-version-check -r "$2" >&2
    cp "$2" "$1/requirements.txt"
}

# ath_build FOLDER [cmake options]: configure once, then build what changed.
ath_build() {
    folder=$1
    shift
    [ -f "$folder/CMakeCache.txt" ] || cmake -S . -B "$folder" "$@" >&2
    cmake --build "$folder" -j "$(nproc)" >"$folder/build.log" 2>&1 || { tail -n 40 "$folder/build.log" >&2; exit 1; }
}
