/* What the shim uses of Android's <stdlib.h>. */
#pragma once
#include <stddef.h>

void *calloc(size_t count, size_t size);
void *malloc(size_t size);
void free(void *memory);
