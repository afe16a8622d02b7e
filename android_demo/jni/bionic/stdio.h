/* What the shim and llama.cpp's headers use of Android's <stdio.h>. */
#pragma once
#include <stdarg.h>
#include <stddef.h>

typedef struct FILE FILE;

int vsnprintf(char *to, size_t size, const char *format, va_list values);
