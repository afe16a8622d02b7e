/* Android's C library over musl, so far as llama.cpp's library for Android needs it under qemu.
 *
 * Both are alike on arm64 in what crosses the border (sizes of mutexes, of stat, numbers of errors
 * and flags); this file has the names that musl lacks, and the calls whose numbers differ.
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

/* Android numbers these otherwise. */
long sysconf(int name) {
    switch (name) {
    case 0x27:
    case 0x28:
        return 4096; /* bytes a page */
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

/* Calls that a compiler has given the room behind their target. */

static void check(size_t needed, size_t room) {
    if (needed > room) {
        fprintf(stderr, "bionic_names.c: %zu bytes written to %zu\n", needed, room);
        abort();
    }
}

void *__memcpy_chk(void *to, const void *from, size_t size, size_t room) {
    check(size, room);
    return memcpy(to, from, size);
}

void *__memset_chk(void *to, int value, size_t size, size_t room) {
    check(size, room);
    return memset(to, value, size);
}

char *__strcpy_chk(char *to, const char *from, size_t room) {
    check(strlen(from) + 1, room);
    return strcpy(to, from);
}

char *__strncpy_chk(char *to, const char *from, size_t size, size_t room) {
    check(size, room);
    return strncpy(to, from, size);
}

size_t __strlen_chk(const char *text, size_t room) {
    check(strlen(text) + 1, room);
    return strlen(text);
}

char *__strchr_chk(const char *text, int c, size_t room) {
    check(strlen(text) + 1, room);
    return strchr(text, c);
}

int __vsnprintf_chk(char *to, size_t size, int flags, size_t room, const char *format,
                    va_list values) {
    (void)flags;
    check(size, room);
    return vsnprintf(to, size, format, values);
}

ssize_t __read_chk(int file, void *to, size_t size, size_t room) {
    check(size, room);
    return read(file, to, size);
}

int __open_2(const char *path, int flags) {
    return open(path, flags);
}

/* Numbers in a locale; there is only one here. */

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
