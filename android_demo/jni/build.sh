#!/usr/bin/env bash
# Builds the native half of the app for arm64: llama.cpp for Android from the npm package llama.rn,
# and the JNI shim. ../build.sh --native takes them from here:
#
#   ../build/native/arm64-v8a/{librnllama_v8.so, libedgespec_jni.so}
#   ../build/native/assets/licences.txt, which must go with them
#
# Exit code 77: a message says what must be installed or fetched first.
set -euo pipefail
cd "$(dirname "$0")"
started=$SECONDS

package=llama.rn@0.10.1 # the last one that contains its Android libraries
package_file=llama.rn-0.10.1.tgz
package_sha256=773f8e88730a9e1248686ff5ed9a51635ea161e89146363b477e07c74d8c5a9d
min_sdk=24
largest=10000000 # bytes of a native APK

work=../build/native
libraries=$work/arm64-v8a
unpacked=$work/llama.rn

missing() {
    echo "jni/build.sh: $*" >&2
    exit 77
}

wrong() {
    echo "jni/build.sh: $*" >&2
    exit 1
}

need_programs() {
    local absent=() program
    for program in clang ld.lld readelf npm javac; do
        command -v "$program" >/dev/null || absent+=("$program")
    done
    [ ${#absent[@]} = 0 ] || missing "${absent[*]} not found; on Debian:" \
        "apt-get install clang lld binutils npm default-jdk-headless"
    java_headers=$(dirname "$(dirname "$(readlink -f "$(command -v javac)")")")/include
    [ -f "$java_headers/jni.h" ] || missing "there is no $java_headers/jni.h; install a whole JDK"
}

fetch() {
    if [ ! -f "$work/$package_file" ]; then
        echo "fetching $package (50 MB)"
        (cd "$work" && npm pack --silent "$package" >/dev/null) ||
            missing "npm cannot fetch $package; is there a network, or a registry's mirror?"
    fi
    echo "$package_sha256  $work/$package_file" | sha256sum --check --quiet ||
        wrong "$work/$package_file is not the file that this was written for; delete it and try again"
    rm -rf "$unpacked"
    mkdir -p "$unpacked"
    tar -xzf "$work/$package_file" -C "$unpacked" --strip-components=1 package/LICENSE \
        package/cpp package/android/src/main/jniLibs/arm64-v8a/librnllama_v8.so
}

write_licences() {
    mkdir -p "$work/assets"
    {
        echo "The native library is llama.cpp as the npm package $package ships it."
        printf '\n--- llama.rn\n\n'
        cat "$unpacked/LICENSE"
        printf '\n--- llama.cpp and ggml\n\n'
        cat "$unpacked/cpp/LICENSE"
        printf '\nUnder the same terms: minja, Copyright 2024 Google LLC; JSON for Modern C++, '
        printf 'Copyright 2013-2025 Niels Lohmann.\n\n--- anyascii\n\n'
        sed -n '2,/^\*\//p' "$unpacked/cpp/anyascii.h" | sed '$d'
    } >"$work/assets/licences.txt"
}

compile() {
    local flags=(--target="aarch64-linux-android$min_sdk" -std=c11 -O2 -fPIC -ffreestanding
        -mno-outline-atomics -Wall -Wextra -Werror -nostdlib -fuse-ld=lld -shared)
    # replaces Android's libc.so while linking; it is not shipped
    mkdir -p "$work/link"
    clang "${flags[@]}" -Wl,-soname,libc.so bionic/libc.c -o "$work/link/libc.so"
    clang "${flags[@]}" -fvisibility=hidden -isystem bionic -isystem "$java_headers" \
        -isystem "$java_headers/linux" -isystem "$unpacked/cpp" edgespec_jni.c \
        -L"$libraries" -lrnllama_v8 -L"$work/link" -lc \
        -Wl,-soname,libedgespec_jni.so,-z,defs,-z,now,-z,max-page-size=16384 -s \
        -o "$libraries/libedgespec_jni.so"
}

# Prints the Android API for which a library was built, so which has all its undefined names.
sdk_of() {
    local hex
    hex=$(LC_ALL=C readelf --wide --notes "$1" |
        sed -n '/Android/,$ s/.*description data: \([0-9a-f]*\) .*/\1/p' | sed 1q)
    [ -n "$hex" ] || wrong "$1 does not say for which Android it was built"
    echo $((16#$hex))
}

check() {
    local library needed
    for library in "$libraries"/*.so; do
        readelf --wide --file-header "$library" | grep -q AArch64 || wrong "$library is not for arm64"
        if readelf --wide --program-headers "$library" | awk '$1 == "LOAD"' | grep -qv '0x4000$'; then
            wrong "$library is not aligned to pages of 16 KB, which new phones have"
        fi
        for needed in $(readelf --wide --dynamic "$library" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'); do
            case $needed in
            libc.so | libm.so | libdl.so | liblog.so | libandroid.so) ;;
            *) [ -f "$libraries/$needed" ] || wrong "$library needs $needed, which is not bundled" ;;
            esac
        done
    done
    local sdk
    sdk=$(sdk_of "$libraries/librnllama_v8.so")
    [ "$sdk" -le "$min_sdk" ] || wrong "librnllama_v8.so is for Android API $sdk, the app for $min_sdk"
}

report() {
    local library packed=0 size
    for library in "$libraries"/*.so; do
        size=$(gzip -9 <"$library" | wc -c)
        packed=$((packed + size))
        echo "$(basename "$library"): $(wc -c <"$library") bytes, $size in an APK"
    done
    [ "$packed" -lt "$largest" ] || wrong "the libraries are $packed bytes in an APK, too many"
    echo "built $libraries in $((SECONDS - started)) s"
}

need_programs
mkdir -p "$libraries"
fetch
rm -f "$libraries"/*
cp "$unpacked/android/src/main/jniLibs/arm64-v8a/librnllama_v8.so" "$libraries"
write_licences
compile
check
report
