/* Linked against, never run: names of Android's libc.so that the shim may use, all of them in
   every Android that runs on arm64. With it the linker finds every other undefined name. */
void calloc(void) {}
void free(void) {}
void malloc(void) {}
void memcpy(void) {}
void memset(void) {}
void strlen(void) {}
void strncmp(void) {}
void vsnprintf(void) {}
