#!/usr/bin/env bash
# Tests the native half of the app in three ways:
#
#   here: the shim, built for this machine with Python's llama.cpp and AddressSanitizer: errors, leaks,
#         equality with Python
#   java: the shim below NativeModel, in a Java machine that checks every JNI call
#   qemu: the libraries that ship, on an emulated arm64, with the tests of `here`: for example, 32
#         greedy tokens are equal to those of llama.cpp on this machine
#
# test.sh [here] [java] [qemu] runs only these. $PYTHON (default: python3) must have edgespec with its
# extras gguf and dev, $EDGESPEC_TEST_MODELS is a folder with smollm2-135m.gguf. Exit code 77: nothing
# was tested; a message says what must be installed or fetched first.
set -euo pipefail
cd "$(dirname "$0")"
started=$SECONDS
export LC_ALL=C.UTF-8
export EDGESPEC_TEST_MODELS="${EDGESPEC_TEST_MODELS:-$HOME/.cache/edgespec-test-models}"
python="${PYTHON:-python3}"
model=$EDGESPEC_TEST_MODELS/smollm2-135m.gguf
json=/usr/share/java/com.android.json.jar
work=$PWD/../build/native
libraries=$work/arm64-v8a
here=$work/here
musl=$work/musl
guest=$work/guest
# a processor of the first 64-bit phones, so that the libraries need nothing newer
emulator="qemu-aarch64 -cpu cortex-a53 -L '$musl/root' -E 'LD_LIBRARY_PATH=$guest' '$guest/driver'"

missing() {
    echo "jni/test.sh: skipped: $*" >&2
    exit 77
}

need() {
    local program absent=()
    for program in cc clang ld.lld qemu-aarch64 apt-get dpkg-deb javac java; do
        command -v "$program" >/dev/null || absent+=("$program")
    done
    [ ${#absent[@]} = 0 ] || missing "${absent[*]} not found; on Debian:" \
        "apt-get install gcc libc6-dev clang lld qemu-user default-jdk-headless junit4 libandroid-json-java"
    [ -f /usr/share/java/junit4.jar ] || missing "JUnit is not there; apt-get install junit4"
    [ -f "$json" ] || missing "org.json is not there; apt-get install libandroid-json-java"
    "$python" -c 'import edgespec, llama_cpp, pytest' 2>/dev/null ||
        missing "$python has no edgespec with its extras gguf and dev; set PYTHON to one that has"
    [ -f "$model" ] || missing "there is no $model; set EDGESPEC_TEST_MODELS"
    packages=$("$python" -c 'import llama_cpp, os; print(os.path.dirname(os.path.dirname(llama_cpp.__file__)))')
    [ -f "$packages/include/llama.h" ] || missing "llama-cpp-python came without its headers"
    headers=$(dirname "$(dirname "$(readlink -f "$(command -v javac)")")")/include
}

# --- here: renames what llama.rn has renamed back
build_here() {
    local renamed=(-Dlm_ggml_log_level=ggml_log_level -DLM_GGML_LOG_LEVEL_ERROR=GGML_LOG_LEVEL_ERROR
        -DLM_GGML_TYPE_F32=GGML_TYPE_F32 -DLM_GGML_TYPE_F16=GGML_TYPE_F16
        -DLM_GGML_TYPE_Q8_0=GGML_TYPE_Q8_0)
    local flags=(-std=c11 -g -O1 -fPIC -Wall -Wextra -Werror "${renamed[@]}" -isystem "$headers"
        -isystem "$headers/linux" -isystem "$packages/include")
    local engine=(-L"$packages/llama_cpp/lib" -Wl,-rpath,"$packages/llama_cpp/lib" -lllama)
    mkdir -p "$here"
    cc "${flags[@]}" -fsanitize=address,undefined edgespec_jni.c test/driver.c "${engine[@]}" \
        -lpthread -o "$here/driver"
    cc "${flags[@]}" -shared edgespec_jni.c "${engine[@]}" -o "$here/libedgespec_jni.so"
    ln -sf "$packages/llama_cpp/lib/libllama.so" "$here/librnllama_v8.so"
}

run_pytest() {
    EDGESPEC_NATIVE_DRIVER=$1 "$python" -m pytest -p no:cacheprovider test/test_native.py
}

run_java() {
    local junit=/usr/share/java/junit4.jar:/usr/share/java/hamcrest-core.jar:$json classes=$here/classes
    local options=() option
    rm -rf "$classes" "$here/files"
    mkdir -p "$classes" "$here/files"
    javac -source 8 -target 8 -Xlint:-options -encoding UTF-8 -cp "$junit" -d "$classes" \
        -sourcepath ../core/src -implicit:class \
        ../app/src/edgespec/app/NativeModel.java test/edgespec/app/NativeModelTest.java
    while read -r option; do options+=("$option"); done < <("$python" test/expected.py "$model")
    [ ${#options[@]} = 6 ] || return 1
    LD_LIBRARY_PATH=$packages/llama_cpp/lib java -Xcheck:jni -Djava.library.path="$here" \
        -Dfolder="$here/files" "${options[@]}" -cp "$classes:$junit" \
        org.junit.runner.JUnitCore edgespec.app.NativeModelTest | tee "$here/java.log"
    if grep -E '^WARNING|FATAL ERROR in native' "$here/java.log"; then
        echo "jni/test.sh: the Java machine found the calls above at fault" >&2
        return 1
    fi
}

# --- qemu: musl's loader runs Android's library; apt checks what it fetches against Debian's keys
fetch_musl() {
    [ ! -f "$musl/root/lib/ld-musl-aarch64.so.1" ] || return 0
    local options=(-qq -o Acquire::Retries=1 -o Acquire::http::Timeout=20 -o APT::Architecture=arm64 -o APT::Architectures=arm64
        -o APT::Sandbox::User=root -o Dir::State::Lists="$musl/lists" -o Dir::State::status=/dev/null
        -o Dir::Cache="$musl/cache" -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache=)
    local package
    rm -rf "$musl"
    mkdir -p "$musl/lists/partial" "$musl/cache/archives/partial"
    apt-get "${options[@]}" update || true # some of the machine's sources may have no arm64
    (cd "$musl" && apt-get "${options[@]}" download musl musl-dev) ||
        missing "apt cannot fetch musl for arm64; is there a network, or a mirror that has arm64?"
    for package in "$musl"/*.deb; do dpkg-deb --extract "$package" "$musl/root"; done
}

build_guest() {
    local objects=$musl/root/usr/lib/aarch64-linux-musl loader=$musl/root/lib/aarch64-linux-musl
    local flags=(--target=aarch64-linux-musl -std=c11 -O2 -fPIC -ffreestanding -mno-outline-atomics
        -Wall -Wextra -Werror -nostdlib -fuse-ld=lld -isystem "$headers"
        -isystem "$headers/linux" -isystem "$musl/root/usr/include/aarch64-linux-musl")
    rm -rf "$guest"
    mkdir -p "$guest"
    cp "$libraries"/*.so "$guest"
    clang "${flags[@]}" -shared test/bionic_names.c -Wl,-soname,liblog.so -o "$guest/liblog.so"
    cp "$guest/liblog.so" "$guest/libandroid.so"
    # Android's names come before the C library, so that their calls are found first
    clang "${flags[@]}" -pie -Wl,--dynamic-linker,/lib/ld-musl-aarch64.so.1 "$objects/Scrt1.o" \
        "$objects/crti.o" test/driver.c -L"$guest" -ledgespec_jni -lrnllama_v8 -llog \
        -L"$loader" -lc "$objects/crtn.o" -o "$guest/driver"
}

chosen=${*:-here java qemu}
for kind in $chosen; do
    [[ $kind =~ ^(here|java|qemu)$ ]] || {
        echo "jni/test.sh: $kind is not one of here, java, qemu" >&2
        exit 2
    }
done
need
if [[ $chosen = *qemu* ]]; then
    ./build.sh
    fetch_musl
    build_guest
fi
build_here
for kind in $chosen; do
    echo "== $kind"
    case $kind in
    here) run_pytest "'$here/driver'" ;;
    java) run_java ;;
    qemu) run_pytest "$emulator" ;;
    esac
done
echo "the native half passes ($chosen) in $((SECONDS - started)) s"
