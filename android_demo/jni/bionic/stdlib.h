/* The part of Android's <stdlib.h> that the shim uses. */
#pragma once
#include <stddef.h>

void *calloc(size_t count, size_t size);
void *malloc(size_t size);
void free(void *memory);
