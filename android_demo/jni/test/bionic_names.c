/* Makes musl look like Android's C library to llama.cpp's Android library under qemu.
 *
 * On arm64 both have the same sizes of mutexes and of stat and the same numbers of errors and flags.
 * This file has the functions that musl lacks, and those whose numbers differ.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

/* Android's stdin, stdout and stderr are three records of 152 bytes. Nothing may be written to
   them here: the shim takes the engine's log. */
char __sF[3][152];

int *__errno(void) {
    return &errno;
}

/* Android's constants for sysconf have other numbers. */
long sysconf(int name) {
    switch (name) {
    case 0x27:
    case 0x28:
        return 4096; /* bytes of a page */
    case 0x60:
    case 0x61:
        return 1; /* processors */
    case 0x62:
    case 0x63:
        return 1 << 20; /* pages of memory: 4 GB */
    default:
        fprintf(stderr, "bionic_names.c: sysconf(%d) is not known\n", name);
        abort();
    }
}

int __system_property_get(const char *name, char *value) {
    (void)name;
    *value = 0;
    return 0;
}

void android_set_abort_message(const char *message) {
    fprintf(stderr, "%s\n", message);
}

int __android_log_vprint(int level, const char *tag, const char *format, va_list values) {
    (void)level;
    fprintf(stderr, "%s: ", tag);
    return vfprintf(stderr, format, values);
}

void __assert2(const char *file, int line, const char *function, const char *what) {
    fprintf(stderr, "%s:%d: %s: %s\n", file, line, function, what);
    abort();
}

/* Functions to which the compiler passes the size of their target. */

static void check(size_t needed, size_t available) {
    if (needed > available) {
        fprintf(stderr, "bionic_names.c: %zu bytes written to %zu\n", needed, available);
        abort();
    }
}

void *__memcpy_chk(void *to, const void *from, size_t size, size_t available) {
    check(size, available);
    return memcpy(to, from, size);
}

void *__memset_chk(void *to, int value, size_t size, size_t available) {
    check(size, available);
    return memset(to, value, size);
}

char *__strcpy_chk(char *to, const char *from, size_t available) {
    check(strlen(from) + 1, available);
    return strcpy(to, from);
}

char *__strncpy_chk(char *to, const char *from, size_t size, size_t available) {
    check(size, available);
    return strncpy(to, from, size);
}

size_t __strlen_chk(const char *text, size_t available) {
    check(strlen(text) + 1, available);
    return strlen(text);
}

char *__strchr_chk(const char *text, int c, size_t available) {
    check(strlen(text) + 1, available);
    return strchr(text, c);
}

int __vsnprintf_chk(char *to, size_t size, int flags, size_t available, const char *format,
                    va_list values) {
    (void)flags;
    check(size, available);
    return vsnprintf(to, size, format, values);
}

ssize_t __read_chk(int file, void *to, size_t size, size_t available) {
    check(size, available);
    return read(file, to, size);
}

int __open_2(const char *path, int flags) {
    return open(path, flags);
}

/* Functions that parse numbers in a locale; there is only one locale here. */

long double strtold_l(const char *text, char **end, locale_t locale) {
    (void)locale;
    return strtold(text, end);
}

long long strtoll_l(const char *text, char **end, int base, locale_t locale) {
    (void)locale;
    return strtoll(text, end, base);
}

unsigned long long strtoull_l(const char *text, char **end, int base, locale_t locale) {
    (void)locale;
    return strtoull(text, end, base);
}
