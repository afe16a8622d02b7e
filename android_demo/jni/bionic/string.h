/* What the shim uses of Android's <string.h>, and what a compiler calls by itself. */
#pragma once
#include <stddef.h>

void *memcpy(void *to, const void *from, size_t size);
void *memset(void *to, int value, size_t size);
size_t strlen(const char *text);
int strncmp(const char *left, const char *right, size_t size);
