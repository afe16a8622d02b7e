#!/usr/bin/env bash
# Builds and tests the demo.
#   test.sh                the parts core, dex and app
#   test.sh core           JUnit tests of core/, on the compiled classes
#   test.sh dex            all JUnit tests, on the classes that enjarify makes from the APK's DEX
#   test.sh app            JUnit tests of the unmodified Activity, on fakes of the android.* classes
#   test.sh native         jni/test.sh: the native library, here and under qemu, compared with llama.cpp
# --no-build tests what build.sh has built last.
# Exit status: 0 all passed; 1 a test failed, or a tool is missing; 2 the part is unknown.
#
# tests/android/test_loopback.py tests the core with a real `edgespec serve`; run it with pytest.
set -euo pipefail
cd "$(dirname "$0")"

java_home=/usr/share/java
# Android has org.json, which a Java machine on a desktop has not.
junit=$java_home/junit4.jar:$java_home/hamcrest-core.jar:$java_home/com.android.json.jar

# junit CLASSES TEST… runs these tests with these classes.
junit() {
    local classes=$1
    shift
    java -ea -cp "build/test:$classes:$junit" org.junit.runner.JUnitCore "$@"
}

# Prints the names of the test classes in a folder.
tests_in() {
    (cd "$1" && find . -name '*Test.java' | sed 's|^\./||; s|\.java$||; s|/|.|g' | sort)
}

compile_tests() {
    rm -rf build/test
    mkdir -p build/test
    find core/test app/test -name '*.java' >build/test-sources
    javac -encoding UTF-8 -Xlint:all,-serial -Werror -cp "build/classes:$junit" \
        -d build/test @build/test-sources
}

core() { junit build/classes $(tests_in core/test); }

app() { junit build/classes $(tests_in app/test); }

dex() {
    PYTHON=/usr/bin/python3 enjarify --force --output build/dex.jar build/dex/classes.dex
    junit build/dex.jar $(tests_in core/test) $(tests_in app/test)
}

native() {
    local status=0
    jni/test.sh || status=$?
    [ $status = 77 ] || return $status
    skipped+=" native (jni/test.sh says above what is missing)"
}

build=yes parts=()
for word in "$@"; do
    case $word in
        --no-build) build= ;;
        core | dex | app | native) parts+=("$word") ;;
        -*) echo "test.sh: unknown option $word; there is --no-build." >&2; exit 2 ;;
        *) echo "test.sh: unknown part $word; there are core, dex, app and native." >&2; exit 2 ;;
    esac
done
[ ${#parts[@]} -gt 0 ] || parts=(core dex app)

SECONDS=0
[ -z "$build" ] || ./build.sh
compile_tests
passed= skipped= unasked=
for part in "${parts[@]}"; do
    echo "== $part"
    before=$skipped
    "$part"
    [ "$before" != "$skipped" ] || passed+=" $part"
done
for part in core dex app native; do
    [[ " ${parts[*]} " == *" $part "* ]] || unasked+=" $part"
done
echo "test.sh: passed:${passed:- nothing}; skipped:${skipped:- nothing}; not asked for:${unasked:- nothing};" \
    "$SECONDS s"
