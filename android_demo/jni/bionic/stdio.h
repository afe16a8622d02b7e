/* The part of Android's <stdio.h> that the shim and llama.cpp's headers use. */
#pragma once
#include <stdarg.h>
#include <stddef.h>

typedef struct FILE FILE;

int vsnprintf(char *to, size_t size, const char *format, va_list values);
