#!/usr/bin/env bash
# Builds the demo's APK with Debian's packages, without Gradle, Google's SDK or an account.
#   build.sh             makes a signed APK in build/
#   build.sh --native    adds the native library for a model on the phone (jni/build.sh)
#   build.sh --tools     only installs the tools: packages, and two archives of Debian's previous release
#   build.sh --packages  only prints the packages, one per line
# --tools and --packages can be combined with --native, which needs more packages.
# Exit status: 0 built; 1 something is missing or does not build; 2 the option is unknown; 3 a
# downloaded file has the wrong checksum.
#
# To sign with your own key instead of a debug key, set EDGESPEC_KEYSTORE (a file),
# EDGESPEC_KEYSTORE_PASSWORD and EDGESPEC_KEY_ALIAS. Set EDGESPEC_DEBIAN_MIRROR to a mirror of the
# previous release if the machine's own mirror no longer has it.
set -euo pipefail
cd "$(dirname "$0")"

framework=/usr/share/android-framework-res/framework-res.apk
# Each needed program or file, and the package that contains it.
needs=(
    "javac openjdk-17-jdk-headless"
    "aapt aapt"
    "zipalign zipalign"
    "apksigner apksigner"
    "$framework android-framework-res"
    "/usr/share/java/com.android.json.jar libandroid-json-java"
    "/usr/share/java/junit4.jar junit4"
    "enjarify enjarify"
)
native_needs=(
    "clang clang"
    "ld.lld lld"
    "readelf binutils"
    "npm npm"
)
# Debian 12 no longer has dx and the classes of Android 6; both come from Debian 11.
previous=bullseye
archives=(
    "dalvik-exchange 10.0.0+r36-1 8fc128db7c27253d963eb9b33de79b197162a4749d2ba69019b2fd0664cbd7fe"
    "libandroid-23-java 6.0.1+r72-6 8af1b6df556971dda0a6da3536ea526a838e0c363afcdd454213d8bce94793e3"
)
android=build/tools/usr/share/java/com.android.android-23.jar
dx=build/tools/usr/share/java/com.android.dx.jar

quick=(-o Acquire::Retries=1 -o Acquire::http::Timeout=20 -o Acquire::https::Timeout=20)

say() { printf '%s\n' "build.sh: $*" >&2; }
fail() { say "$*"; exit 1; }

missing_packages() {
    local need
    for need in "${needs[@]}"; do
        command -v "${need% *}" >/dev/null || [ -e "${need% *}" ] || echo "${need#* }"
    done
}

get_packages() {
    local missing
    mapfile -t missing < <(missing_packages)
    [ ${#missing[@]} -gt 0 ] || return 0
    command -v apt-get >/dev/null ||
        fail "this machine has no apt-get, and these packages of Debian 12 are missing: ${missing[*]}."
    [ "$(id -u)" = 0 ] ||
        fail "packages are missing. Run: sudo apt-get install --no-install-recommends ${missing[*]}"
    say "installing ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    { apt-get "${quick[@]}" update -qq && apt-get "${quick[@]}" install -qq -y --no-install-recommends "${missing[@]}"; } \
        >build/apt.log 2>&1 || {
        tail -n 5 build/apt.log >&2
        fail "apt-get could not install ${missing[*]}; all it said is in android_demo/build/apt.log."
    }
}

# Prints the Debian mirror in this machine's configuration.
mirror() {
    [ -z "${EDGESPEC_DEBIAN_MIRROR:-}" ] || { echo "$EDGESPEC_DEBIAN_MIRROR"; return; }
    apt-get indextargets --format '$(SITE)' \
        'Created-By: Packages' 'Origin: Debian' 'Label: Debian' 'Component: main' | head -n 1
}

checked() { echo "$2  $1" | sha256sum --check --status 2>/dev/null; }

get_archives() {
    local entry name version sum missing=() files=()
    for entry in "${archives[@]}"; do
        read -r name version sum <<<"$entry"
        files+=("build/tools/${name}_${version}_all.deb")
        checked "${files[-1]}" "$sum" || missing+=("$name=$version")
    done
    [ ${#missing[@]} -eq 0 ] || download "${missing[@]}"
    for entry in "${archives[@]}"; do
        read -r name version sum <<<"$entry"
        checked "build/tools/${name}_${version}_all.deb" "$sum" || {
            rm -f "build/tools/${name}_${version}_all.deb"
            say "${name}_${version}_all.deb does not have the SHA-256 expected ($sum); it is deleted."
            exit 3
        }
    done
    [ -e "$android" ] && [ -e "$dx" ] && [ ${#missing[@]} -eq 0 ] ||
        for name in "${files[@]}"; do dpkg -x "$name" build/tools; done
}

# Downloads with sources, lists and a cache of its own, so that the machine's stay unchanged.
download() {
    local apt=$PWD/build/tools/apt from
    from=$(mirror)
    if [ -z "$from" ] && [ "$(id -u)" = 0 ]; then
        apt-get "${quick[@]}" update -qq >build/apt.log 2>&1 || true
        from=$(mirror)
    fi
    [ -n "$from" ] || fail "no mirror of Debian is configured on this machine (see apt-get indextargets);" \
        "name one in EDGESPEC_DEBIAN_MIRROR."
    rm -rf "$apt"
    mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial"
    echo "deb $from $previous main" >"$apt/sources.list"
    local options=("${quick[@]}" -o "Dir::Etc::SourceList=$apt/sources.list" -o Dir::Etc::SourceParts=/dev/null
        -o "Dir::State::Lists=$apt/lists" -o "Dir::Cache=$apt/cache" -o APT::Sandbox::User=root)
    say "fetching ${*%%=*} of Debian's previous release"
    { apt-get "${options[@]}" update -qq && (cd build/tools && apt-get "${options[@]}" download -qq "$@"); } \
        >build/apt.log 2>&1 || {
        tail -n 5 build/apt.log >&2
        fail "${*%%=*} could not be fetched from $previous. Is there a network? If this machine's mirror has" \
            "that release no more, name one that has in EDGESPEC_DEBIAN_MIRROR. All that apt-get said is in" \
            "android_demo/build/apt.log."
    }
    rm -rf "$apt"
}

compile() {
    rm -rf build/gen build/classes build/dex
    mkdir -p build/gen build/classes build/dex
    aapt package -f -m -J build/gen -M app/AndroidManifest.xml -S app/res -I "$framework"
    find core/src app/src build/gen -name '*.java' >build/sources
    javac -source 8 -target 8 -encoding UTF-8 -Xlint:all,-options,-serial -Werror \
        -bootclasspath "$android" -d build/classes @build/sources
    java -cp "$dx" com.android.dx.command.Main --dex --min-sdk-version=23 \
        --output=build/dex/classes.dex build/classes
}

# Puts the APK together. The native library is compressed, as extractNativeLibs in the manifest says,
# and the licences of its parts are with it.
package() {
    rm -rf build/lib build/unaligned.apk
    aapt package -f -M app/AndroidManifest.xml -S app/res -I "$framework" -F build/unaligned.apk \
        ${native:+-A build/native/assets}
    (cd build/dex && aapt add ../unaligned.apk classes.dex >/dev/null)
    if [ -n "$native" ]; then
        mkdir -p build/lib/arm64-v8a
        cp build/native/arm64-v8a/*.so build/lib/arm64-v8a/
        (cd build && aapt add unaligned.apk lib/arm64-v8a/*.so >/dev/null)
    fi
    zipalign -f -p 4 build/unaligned.apk "$apk"
    rm build/unaligned.apk
}

sign() {
    local store=${EDGESPEC_KEYSTORE:-build/debug.keystore} alias=${EDGESPEC_KEY_ALIAS:-debug}
    if [ -z "${EDGESPEC_KEYSTORE:-}" ]; then
        export EDGESPEC_KEYSTORE_PASSWORD=android
        [ -e "$store" ] || keytool -genkeypair -keystore "$store" -storetype PKCS12 -alias debug \
            -storepass:env EDGESPEC_KEYSTORE_PASSWORD -dname "CN=edgespec debug" \
            -keyalg RSA -keysize 2048 -validity 10000 >build/keytool.log 2>&1 ||
            fail "keytool could not make the debug key: $(cat build/keytool.log)"
    elif [ -z "${EDGESPEC_KEYSTORE_PASSWORD:-}" ]; then
        fail "EDGESPEC_KEYSTORE is given without EDGESPEC_KEYSTORE_PASSWORD."
    fi
    apksigner sign --ks "$store" --ks-key-alias "$alias" --ks-pass env:EDGESPEC_KEYSTORE_PASSWORD "$apk"
    apksigner verify "$apk"
}

native= only=
for option in "$@"; do
    case $option in
        --native) native=yes ;;
        --tools) only=tools ;;
        -h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' build.sh; exit ;;
        --packages) only=packages ;;
        *) say "unknown option $option; there are --native, --tools and --packages."; exit 2 ;;
    esac
done

[ -z "$native" ] || needs+=("${native_needs[@]}")
if [ "$only" = packages ]; then
    printf '%s\n' "${needs[@]#* }"
    exit
fi

SECONDS=0
mkdir -p build/tools
get_packages
get_archives
[ "$only" != tools ] || exit 0

apk=build/edgespec-demo.apk
[ -z "$native" ] || jni/build.sh || fail "the native library could not be built; jni/build.sh says why above."
compile
package
sign
echo "android_demo/$apk  $((($(stat -c %s "$apk") + 1023) / 1024)) KB  $SECONDS s"
