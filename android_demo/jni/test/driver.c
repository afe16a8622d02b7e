/* Calls the shim's JNI functions as a Java machine would, one line of input at a time:
 *
 *   open HEX_PATH n_ctx n_threads type_k type_v flash_attention · close · sizes · truncate n
 *   decode n_rows id… · decode_cancelled ms n_rows id… · encode add_special HEX · chat HEX HEX …
 *   template · piece id · end id · entries
 *
 * answers "ok RESULT" or "throw CLASS SENTENCE". Texts are hexadecimal, "-" is an empty one. A
 * call that JNI does not allow ends the program.
 */
#define _GNU_SOURCE
#include <jni.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

jint JNI_OnLoad(JavaVM *, void *);
jlong Java_edgespec_app_NativeModel_open(JNIEnv *, jclass, jbyteArray, jint, jint, jint, jint,
                                         jboolean);
void Java_edgespec_app_NativeModel_close(JNIEnv *, jclass, jlong);
jint Java_edgespec_app_NativeModel_vocabularySize(JNIEnv *, jclass, jlong);
jint Java_edgespec_app_NativeModel_contextSize(JNIEnv *, jclass, jlong);
jint Java_edgespec_app_NativeModel_nPast(JNIEnv *, jclass, jlong);
jintArray Java_edgespec_app_NativeModel_decode(JNIEnv *, jclass, jlong, jintArray, jint);
void Java_edgespec_app_NativeModel_cancel(JNIEnv *, jclass, jlong);
void Java_edgespec_app_NativeModel_truncate(JNIEnv *, jclass, jlong, jint);
jintArray Java_edgespec_app_NativeModel_encode(JNIEnv *, jclass, jlong, jbyteArray, jboolean);
jintArray Java_edgespec_app_NativeModel_encodeChat(JNIEnv *, jclass, jlong, jobjectArray);
jbyteArray Java_edgespec_app_NativeModel_chatTemplate(JNIEnv *, jclass, jlong);
jbyteArray Java_edgespec_app_NativeModel_piece(JNIEnv *, jclass, jlong, jint);
jboolean Java_edgespec_app_NativeModel_isEnd(JNIEnv *, jclass, jlong, jint);
jbyteArray Java_edgespec_app_NativeModel_entries(JNIEnv *, jclass, jlong);

/* JNI objects are arrays, or classes, which are stored as their names. */

struct object {
    struct object *next;
    jsize length;
    size_t element;
    char data[];
};

static struct object *objects;
static char thrown[2048];

static void check(int allowed, const char *what) {
    if (!allowed) {
        fprintf(stderr, "driver.c: not allowed in JNI: %s\n", what);
        exit(1);
    }
}

static void *new_object(jsize length, size_t element) {
    check(!thrown[0], "a new object while an exception is pending");
    check(length >= 0, "an array of a negative length");
    struct object *object = calloc(1, sizeof *object + (size_t)length * element);
    object->length = length;
    object->element = element;
    object->next = objects;
    objects = object;
    return object;
}

static void free_objects(void) {
    while (objects) {
        struct object *next = objects->next;
        free(objects);
        objects = next;
    }
}

static char *region(void *array, jsize start, jsize length, size_t element) {
    struct object *object = array;
    check(!thrown[0], "a region while an exception is pending");
    check(object && object->element == element, "a region of what is no such array");
    check(start >= 0 && length >= 0 && length <= object->length - start, "a region outside");
    return object->data + (size_t)start * element;
}

static jclass find_class(JNIEnv *env, const char *name) {
    (void)env;
    struct object *object = new_object((jsize)strlen(name) + 1, 1);
    strcpy(object->data, name);
    return (jclass)object;
}

static jint throw_new(JNIEnv *env, jclass type, const char *sentence) {
    (void)env;
    check(!thrown[0], "an exception on top of another");
    for (const char *c = sentence; *c; c++)
        check((unsigned char)*c < 127, "a sentence that is not ASCII");
    snprintf(thrown, sizeof thrown, "%s %s", ((struct object *)type)->data, sentence);
    return 0;
}

static void delete_local_ref(JNIEnv *env, jobject object) {
    (void)env, (void)object; /* all objects are freed after the call */
}

static jsize array_length(JNIEnv *env, jarray array) {
    (void)env;
    check(array && !thrown[0], "the length of nothing, or while an exception is pending");
    return ((struct object *)array)->length;
}

static jobject get_element(JNIEnv *env, jobjectArray array, jsize index) {
    (void)env;
    return *(jobject *)region(array, index, 1, sizeof(jobject));
}

static jbyteArray new_byte_array(JNIEnv *env, jsize length) {
    (void)env;
    return new_object(length, sizeof(jbyte));
}

static jintArray new_int_array(JNIEnv *env, jsize length) {
    (void)env;
    return new_object(length, sizeof(jint));
}

static void get_bytes(JNIEnv *env, jbyteArray array, jsize start, jsize length, jbyte *to) {
    (void)env;
    memcpy(to, region(array, start, length, sizeof *to), (size_t)length);
}

static void set_bytes(JNIEnv *env, jbyteArray array, jsize start, jsize length,
                      const jbyte *from) {
    (void)env;
    memcpy(region(array, start, length, sizeof *from), from, (size_t)length);
}

static void get_ints(JNIEnv *env, jintArray array, jsize start, jsize length, jint *to) {
    (void)env;
    memcpy(to, region(array, start, length, sizeof *to), (size_t)length * sizeof *to);
}

static void set_ints(JNIEnv *env, jintArray array, jsize start, jsize length, const jint *from) {
    (void)env;
    memcpy(region(array, start, length, sizeof *from), from, (size_t)length * sizeof *from);
}

static const struct JNINativeInterface_ functions = {
    .FindClass = find_class,
    .ThrowNew = throw_new,
    .DeleteLocalRef = delete_local_ref,
    .GetArrayLength = array_length,
    .GetObjectArrayElement = get_element,
    .NewByteArray = new_byte_array,
    .NewIntArray = new_int_array,
    .GetByteArrayRegion = get_bytes,
    .SetByteArrayRegion = set_bytes,
    .GetIntArrayRegion = get_ints,
    .SetIntArrayRegion = set_ints,
};
static JNIEnv the_env = &functions;
static JNIEnv *const env = &the_env;

/* Input: the words of a line. */

static jlong handle;

static jint next_int(void) {
    const char *word = strtok(NULL, " ");
    check(word != NULL, "a line without its numbers");
    return atoi(word);
}

static jintArray rest_as_ints(void) {
    jint ids[8192];
    jsize n = 0;
    for (const char *word; n < 8192 && (word = strtok(NULL, " "));)
        ids[n++] = atoi(word);
    jintArray array = new_int_array(env, n);
    set_ints(env, array, 0, n, ids);
    return array;
}

static jbyteArray as_bytes(const char *word) {
    jsize n = strcmp(word, "-") ? (jsize)strlen(word) / 2 : 0;
    struct object *array = new_object(n, 1);
    for (jsize i = 0; i < n; i++) {
        unsigned value;
        sscanf(word + 2 * i, "%2x", &value);
        array->data[i] = (char)value;
    }
    return (jbyteArray)array;
}

static jobjectArray rest_as_texts(void) {
    jobject texts[256];
    jsize n = 0;
    for (const char *word; n < 256 && (word = strtok(NULL, " "));)
        texts[n++] = as_bytes(word);
    struct object *array = new_object(n, sizeof(jobject));
    memcpy(array->data, texts, (size_t)n * sizeof(jobject));
    return (jobjectArray)array;
}

/* Output. */

static void print_int(jint value) {
    if (!thrown[0])
        printf("ok %d\n", value);
}

static void print_array(void *array) {
    struct object *object = array;
    check(!object == !!thrown[0], "a result and an exception, or neither");
    if (!object)
        return;
    printf("ok");
    if (object->element == sizeof(jint))
        for (jsize i = 0; i < object->length; i++)
            printf(" %d", ((jint *)object->data)[i]);
    else if (object->length)
        putchar(' ');
    if (object->element == 1)
        for (jsize i = 0; i < object->length; i++)
            printf("%02x", (unsigned char)object->data[i]);
    putchar('\n');
}

/* Stops the running decode after some milliseconds, repeatedly. */

static atomic_bool decoding;

static void *press_stop(void *ms) {
    usleep((useconds_t)(*(const jint *)ms * 1000));
    while (atomic_load(&decoding))
        Java_edgespec_app_NativeModel_cancel(env, NULL, handle);
    return NULL;
}

static void decode(bool cancelled) {
    jint ms = cancelled ? next_int() : 0;
    jint n_rows = next_int();
    jintArray ids = rest_as_ints();
    pthread_t presser;
    atomic_store(&decoding, true);
    if (cancelled)
        check(!pthread_create(&presser, NULL, press_stop, &ms), "a thread");
    jintArray rows = Java_edgespec_app_NativeModel_decode(env, NULL, handle, ids, n_rows);
    atomic_store(&decoding, false);
    if (cancelled)
        pthread_join(presser, NULL);
    print_array(rows);
}

static void open_model(void) {
    jbyteArray path = as_bytes(strtok(NULL, " "));
    jint n_ctx = next_int(), n_threads = next_int(), type_k = next_int(), type_v = next_int();
    jlong opened = Java_edgespec_app_NativeModel_open(env, NULL, path, n_ctx, n_threads, type_k,
                                                      type_v, (jboolean)next_int());
    check(!opened == !!thrown[0], "a handle and an exception, or neither");
    if (opened)
        handle = opened;
    print_int(opened != 0);
}

static void close_model(void) {
    Java_edgespec_app_NativeModel_close(env, NULL, handle);
    handle = 0;
    print_int(0);
}

static void print_sizes(void) {
    jint sizes[3] = {Java_edgespec_app_NativeModel_vocabularySize(env, NULL, handle)};
    if (!thrown[0])
        sizes[1] = Java_edgespec_app_NativeModel_contextSize(env, NULL, handle);
    if (!thrown[0])
        sizes[2] = Java_edgespec_app_NativeModel_nPast(env, NULL, handle);
    if (!thrown[0])
        printf("ok %d %d %d\n", sizes[0], sizes[1], sizes[2]);
}

static void obey(const char *command) {
    if (!strcmp(command, "open")) {
        open_model();
    } else if (!strcmp(command, "close")) {
        close_model();
    } else if (!strcmp(command, "sizes")) {
        print_sizes();
    } else if (!strcmp(command, "truncate")) {
        Java_edgespec_app_NativeModel_truncate(env, NULL, handle, next_int());
        print_int(0);
    } else if (!strcmp(command, "decode")) {
        decode(false);
    } else if (!strcmp(command, "decode_cancelled")) {
        decode(true);
    } else if (!strcmp(command, "encode")) {
        jboolean add_special = (jboolean)next_int();
        jbyteArray text = as_bytes(strtok(NULL, " "));
        print_array(Java_edgespec_app_NativeModel_encode(env, NULL, handle, text, add_special));
    } else if (!strcmp(command, "chat")) {
        print_array(Java_edgespec_app_NativeModel_encodeChat(env, NULL, handle, rest_as_texts()));
    } else if (!strcmp(command, "template")) {
        print_array(Java_edgespec_app_NativeModel_chatTemplate(env, NULL, handle));
    } else if (!strcmp(command, "piece")) {
        print_array(Java_edgespec_app_NativeModel_piece(env, NULL, handle, next_int()));
    } else if (!strcmp(command, "end")) {
        print_int(Java_edgespec_app_NativeModel_isEnd(env, NULL, handle, next_int()));
    } else if (!strcmp(command, "entries")) {
        print_array(Java_edgespec_app_NativeModel_entries(env, NULL, handle));
    } else {
        check(false, command);
    }
}

int main(void) {
    JNI_OnLoad(NULL, NULL);
    char *line = NULL;
    size_t room = 0;
    while (getline(&line, &room, stdin) > 0) {
        line[strcspn(line, "\n")] = 0;
        obey(strtok(line, " "));
        if (thrown[0])
            printf("throw %s\n", thrown);
        thrown[0] = 0;
        free_objects();
        fflush(stdout);
    }
    free(line);
    return 0;
}
