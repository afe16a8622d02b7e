/* The part of Android's <string.h> that the shim uses and that compilers call by themselves. */
#pragma once
#include <stddef.h>

void *memcpy(void *to, const void *from, size_t size);
void *memset(void *to, int value, size_t size);
size_t strlen(const char *text);
int strncmp(const char *left, const char *right, size_t size);
