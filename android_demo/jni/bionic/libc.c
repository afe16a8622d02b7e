/* The names of Android's libc.so that the shim may use; every Android on arm64 has them. The shim is
   linked against this file, so that the linker reports any other name. It is never run. */
void calloc(void) {}
void free(void) {}
void malloc(void) {}
void memcpy(void) {}
void memset(void) {}
void strlen(void) {}
void strncmp(void) {}
void vsnprintf(void) {}
