/* The native half of edgespec.app.NativeModel: it runs one GGUF file with one sequence, greedily.
 *
 * This file checks whatever llama.cpp would answer with an abort or a C++ exception, which would
 * crash the app: ids outside the vocabulary, a full context, a handle that was closed. Texts are
 * passed as UTF-8 in byte arrays, because JNI's own strings have another encoding.
 */
#include <jni.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "llama.h"

#define IO_EXCEPTION "java/io/IOException"
#define INTERRUPTED "java/io/InterruptedIOException"
#define BAD_ARGUMENT "java/lang/IllegalArgumentException"
#define BAD_STATE "java/lang/IllegalStateException"
#define OUT_OF_MEMORY "java/lang/OutOfMemoryError"
#define NO_CHAT_MODEL "it does not continue texts; take a chat model"

enum {
    /* Most tokens of one evaluation. The engine reserves logits for all of them: 64 rows of a vocabulary
       of 152,000 are 39 MB, its own default of 512 would be 311 MB. */
    MAX_BATCH = 64,
    MAX_SENTENCE = 512,
    /* Return codes of llama_decode. */
    FULL = 1,
    ABORTED = 2,
};

struct native_model {
    struct llama_model *weights;
    struct llama_context *context;
    const struct llama_vocab *vocab;
    struct llama_batch batch;
    int vocab_size, n_ctx, n_past;
    atomic_bool cancelled;
};

/* The first error that the engine logged since `begin_listening`, because its return codes do not
   say why something failed. If two models run at once, only these reasons may be mixed up. */
static char engine_said[MAX_SENTENCE];

static void begin_listening(void) {
    engine_said[0] = 0;
}

static void on_log(enum lm_ggml_log_level level, const char *text, void *unused) {
    (void)unused;
    if (level != LM_GGML_LOG_LEVEL_ERROR || engine_said[0])
        return;
    size_t size = strlen(text);
    while (size && (text[size - 1] == '\n' || text[size - 1] == ' '))
        size--;
    if (size >= sizeof engine_said)
        size = sizeof engine_said - 1;
    memcpy(engine_said, text, size);
    engine_said[size] = 0;
}

static const char *reason(void) {
    return engine_said[0] ? engine_said : "the engine gives no reason";
}

/* Throws an exception. The engine may quote file names and templates: bytes that are not ASCII
   become '?', because ThrowNew expects JNI's own encoding and crashes the app otherwise. */
static void fail(JNIEnv *env, const char *exception, const char *format, ...) {
    char sentence[MAX_SENTENCE + 256];
    va_list values;
    va_start(values, format);
    vsnprintf(sentence, sizeof sentence, format, values);
    va_end(values);
    for (char *c = sentence; *c; c++)
        if ((unsigned char)*c > 126)
            *c = '?';
    jclass type = (*env)->FindClass(env, exception);
    if (type) { /* otherwise FindClass has thrown */
        (*env)->ThrowNew(env, type, sentence);
        (*env)->DeleteLocalRef(env, type);
    }
}

/* Returns the model of a handle; NULL, with an exception, after close. */
static struct native_model *opened(JNIEnv *env, jlong handle) {
    if (!handle)
        fail(env, BAD_STATE, "the model is closed; open it again");
    return (struct native_model *)(intptr_t)handle;
}

static bool in_vocabulary(JNIEnv *env, const struct native_model *model, jint id) {
    if (id >= 0 && id < model->vocab_size)
        return true;
    fail(env, BAD_ARGUMENT, "there is no token %d; the model's vocabulary has 0 to %d", id,
         model->vocab_size - 1);
    return false;
}

/* Returns a copy that ends with a zero byte and must be freed; NULL with an exception. */
static char *copy_of(JNIEnv *env, jbyteArray bytes, jint *size) {
    if (!bytes) {
        fail(env, BAD_ARGUMENT, "a text is missing");
        return NULL;
    }
    *size = (*env)->GetArrayLength(env, bytes);
    char *copy = malloc((size_t)*size + 1);
    if (!copy) {
        fail(env, OUT_OF_MEMORY, "no memory for a text of %d bytes", *size);
        return NULL;
    }
    (*env)->GetByteArrayRegion(env, bytes, 0, *size, (jbyte *)copy);
    copy[*size] = 0;
    return copy;
}

static jbyteArray new_bytes(JNIEnv *env, const char *bytes, jint size) {
    jbyteArray array = (*env)->NewByteArray(env, size);
    if (array)
        (*env)->SetByteArrayRegion(env, array, 0, size, (const jbyte *)bytes);
    return array;
}

static bool should_stop(void *model) {
    return atomic_load_explicit(&((struct native_model *)model)->cancelled, memory_order_relaxed);
}

static void release(struct native_model *model) {
    llama_batch_free(model->batch);
    if (model->context)
        llama_free(model->context);
    if (model->weights)
        llama_model_free(model->weights);
    free(model);
}

static bool is_cache_type(jint type) {
    return type == LM_GGML_TYPE_F32 || type == LM_GGML_TYPE_F16 || type == LM_GGML_TYPE_Q8_0;
}

/* Returns true if the model can hold conversations and its cache can be cut; throws if not. */
static bool is_usable(JNIEnv *env, const struct llama_model *weights) {
    if (llama_model_has_encoder(weights) || !llama_model_has_decoder(weights))
        fail(env, IO_EXCEPTION, NO_CHAT_MODEL);
    else if (llama_model_is_recurrent(weights) || llama_model_is_hybrid(weights))
        fail(env, IO_EXCEPTION, "its memory cannot be cut, which drafting needs; take a model "
             "without a recurrent state");
    else
        return true;
    return false;
}

static struct llama_context *new_context(struct native_model *model, jint n_ctx, jint n_threads,
                                         jint type_k, jint type_v, jboolean flash_attention) {
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = (uint32_t)n_ctx;
    params.n_batch = params.n_ubatch = MAX_BATCH;
    params.n_threads = params.n_threads_batch = n_threads;
    params.type_k = type_k;
    params.type_v = type_v;
    params.flash_attn_type =
        flash_attention ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    params.abort_callback = should_stop;
    params.abort_callback_data = model;
    return llama_init_from_model(model->weights, params);
}

static bool open_file(JNIEnv *env, struct native_model *model, const char *path, jint n_ctx,
                      jint n_threads, jint type_k, jint type_v, jboolean flash_attention) {
    struct llama_model_params params = llama_model_default_params();
    params.n_gpu_layers = 0; /* round trips take most of the time; a GPU would not help */
    model->weights = llama_model_load_from_file(path, params);
    if (!model->weights) {
        fail(env, IO_EXCEPTION, "the engine cannot load it (%s); copy the file again, or take "
             "another model", reason());
        return false;
    }
    if (!is_usable(env, model->weights))
        return false;
    model->context = new_context(model, n_ctx, n_threads, type_k, type_v, flash_attention);
    if (!model->context) {
        fail(env, IO_EXCEPTION, "no context of %d tokens could be made (%s); take a smaller one",
             n_ctx, reason());
        return false;
    }
    if (!llama_get_memory(model->context)) { /* models that only make embeddings have none */
        fail(env, IO_EXCEPTION, NO_CHAT_MODEL);
        return false;
    }
    model->vocab = llama_model_get_vocab(model->weights);
    model->vocab_size = llama_vocab_n_tokens(model->vocab);
    model->n_ctx = (int)llama_n_ctx(model->context);
    return true;
}

JNIEXPORT jint JNICALL JNI_OnLoad(JavaVM *vm, void *reserved) {
    (void)vm, (void)reserved;
    llama_log_set(on_log, NULL);
    llama_backend_init();
    return JNI_VERSION_1_6;
}

/* Loads a file and makes its context; returns the handle for all other calls. Throws IOException. */
JNIEXPORT jlong JNICALL Java_edgespec_app_NativeModel_open(
    JNIEnv *env, jclass type, jbyteArray path_bytes, jint n_ctx, jint n_threads, jint type_k,
    jint type_v, jboolean flash_attention) {
    (void)type;
    if (n_ctx < 1 || n_threads < 1 || !is_cache_type(type_k) || !is_cache_type(type_v)) {
        fail(env, BAD_ARGUMENT, "a context of %d tokens, %d threads and caches of types %d and %d "
             "were asked for; the first two are 1 or more, types are 0 (F32), 1 (F16) or 8 (Q8_0)",
             n_ctx, n_threads, type_k, type_v);
        return 0;
    }
    jint size;
    char *path = copy_of(env, path_bytes, &size);
    if (!path)
        return 0;
    begin_listening();
    struct native_model *model = calloc(1, sizeof *model);
    if (model) {
        model->batch = llama_batch_init(MAX_BATCH, 0, 1);
        if (!open_file(env, model, path, n_ctx, n_threads, type_k, type_v, flash_attention)) {
            release(model);
            model = NULL;
        }
    } else {
        fail(env, OUT_OF_MEMORY, "no memory for a model");
    }
    free(path);
    return (jlong)(intptr_t)model;
}

JNIEXPORT void JNICALL Java_edgespec_app_NativeModel_close(JNIEnv *env, jclass type, jlong handle) {
    (void)env, (void)type;
    if (handle)
        release((struct native_model *)(intptr_t)handle);
}

JNIEXPORT jint JNICALL Java_edgespec_app_NativeModel_vocabularySize(JNIEnv *env, jclass type,
                                                                    jlong handle) {
    (void)type;
    struct native_model *model = opened(env, handle);
    return model ? model->vocab_size : 0;
}

JNIEXPORT jint JNICALL Java_edgespec_app_NativeModel_contextSize(JNIEnv *env, jclass type,
                                                                 jlong handle) {
    (void)type;
    struct native_model *model = opened(env, handle);
    return model ? model->n_ctx : 0;
}

JNIEXPORT jint JNICALL Java_edgespec_app_NativeModel_nPast(JNIEnv *env, jclass type, jlong handle) {
    (void)type;
    struct native_model *model = opened(env, handle);
    return model ? model->n_past : 0;
}

/* Returns the likeliest id, the lowest one of several, as NumPy's argmax does. */
static jint likeliest(const float *logits, int size) {
    int best = 0;
    for (int id = 1; id < size; id++)
        if (logits[id] > logits[best])
            best = id;
    return best;
}

/* Evaluates up to MAX_BATCH tokens at a position, with logits from the token `first_row` on. Returns
   the code of llama_decode. */
static int evaluate(struct native_model *model, const jint *tokens, int n, int position,
                    int first_row) {
    struct llama_batch *batch = &model->batch;
    batch->n_tokens = n;
    for (int i = 0; i < n; i++) {
        batch->token[i] = tokens[i];
        batch->pos[i] = position + i;
        batch->n_seq_id[i] = 1;
        batch->seq_id[i][0] = 0;
        batch->logits[i] = i >= first_row;
    }
    return llama_decode(model->context, *batch);
}

static void fail_decode(JNIEnv *env, const struct native_model *model, int code, int n_tokens) {
    if (code == ABORTED)
        fail(env, INTERRUPTED, "stopped while %d tokens were read", n_tokens);
    else if (code == FULL)
        fail(env, IO_EXCEPTION, "no room in the cache for %d tokens after %d of %d; open the "
             "model with a larger context or start a new conversation",
             n_tokens, model->n_past, model->n_ctx);
    else
        fail(env, IO_EXCEPTION, "the engine could not read %d tokens after %d (code %d: %s)",
             n_tokens, model->n_past, code, reason());
}

/* Fills `best` with the likeliest next id after each of the last n_rows tokens. On failure it throws
   an exception and leaves the cache as it was. */
static bool decode(JNIEnv *env, struct native_model *model, const jint *tokens, int n_tokens,
                   int n_rows, jint *best) {
    atomic_store(&model->cancelled, false);
    begin_listening();
    int first_row = n_tokens - n_rows;
    for (int done = 0; done < n_tokens; done += MAX_BATCH) {
        int n = n_tokens - done < MAX_BATCH ? n_tokens - done : MAX_BATCH;
        int code = evaluate(model, tokens + done, n, model->n_past + done, first_row - done);
        if (code) {
            llama_memory_seq_rm(llama_get_memory(model->context), 0, model->n_past, -1);
            fail_decode(env, model, code, n_tokens);
            return false;
        }
        for (int i = 0; i < n; i++)
            if (model->batch.logits[i])
                *best++ = likeliest(llama_get_logits_ith(model->context, i), model->vocab_size);
    }
    model->n_past += n_tokens;
    return true;
}

static bool can_decode(JNIEnv *env, const struct native_model *model, const jint *tokens,
                       jint n_tokens, jint n_rows) {
    if (n_rows < 1 || n_rows > n_tokens) {
        fail(env, BAD_ARGUMENT, "%d rows of %d tokens were asked for; 1 to as many as there are "
             "tokens can be had", n_rows, n_tokens);
        return false;
    }
    for (jint i = 0; i < n_tokens; i++)
        if (!in_vocabulary(env, model, tokens[i]))
            return false;
    if (n_tokens > model->n_ctx - model->n_past) {
        fail_decode(env, model, FULL, n_tokens);
        return false;
    }
    return true;
}

/* Appends tokens; returns the likeliest ids after the last n_rows of them. Throws IOException. */
JNIEXPORT jintArray JNICALL Java_edgespec_app_NativeModel_decode(
    JNIEnv *env, jclass type, jlong handle, jintArray token_array, jint n_rows) {
    (void)type;
    struct native_model *model = opened(env, handle);
    if (!model)
        return NULL;
    jint n_tokens = token_array ? (*env)->GetArrayLength(env, token_array) : 0;
    jint *tokens = malloc(sizeof *tokens * 2 * ((size_t)n_tokens + 1));
    if (!tokens) {
        fail(env, OUT_OF_MEMORY, "no memory for %d tokens", n_tokens);
        return NULL;
    }
    jint *best = tokens + n_tokens;
    jintArray rows = NULL;
    if (n_tokens)
        (*env)->GetIntArrayRegion(env, token_array, 0, n_tokens, tokens);
    if (can_decode(env, model, tokens, n_tokens, n_rows) &&
        decode(env, model, tokens, n_tokens, n_rows, best)) {
        rows = (*env)->NewIntArray(env, n_rows);
        if (rows)
            (*env)->SetIntArrayRegion(env, rows, 0, n_rows, best);
    }
    free(tokens);
    return rows;
}

/* Stops the running decode, which then throws InterruptedIOException. Any thread may call it. */
JNIEXPORT void JNICALL Java_edgespec_app_NativeModel_cancel(JNIEnv *env, jclass type,
                                                            jlong handle) {
    (void)type;
    struct native_model *model = opened(env, handle);
    if (model)
        atomic_store(&model->cancelled, true);
}

/* Deletes all tokens from n_past on from the cache. Throws IOException if the engine cannot. */
JNIEXPORT void JNICALL Java_edgespec_app_NativeModel_truncate(JNIEnv *env, jclass type,
                                                              jlong handle, jint n_past) {
    (void)type;
    struct native_model *model = opened(env, handle);
    if (!model)
        return;
    if (n_past < 0)
        fail(env, BAD_ARGUMENT, "the cache cannot be cut to %d tokens; 0 or more", n_past);
    else if (n_past >= model->n_past)
        return;
    else if (llama_memory_seq_rm(llama_get_memory(model->context), 0, n_past, -1))
        model->n_past = n_past;
    else
        fail(env, IO_EXCEPTION, "the cache of %d tokens cannot be cut to %d; open the model again",
             model->n_past, n_past);
}

/* Returns the ids of a UTF-8 text; special tokens that are written out count as such. */
static jintArray tokenized(JNIEnv *env, const struct native_model *model, const char *text,
                           jint size, bool add_special) {
    /* No token is shorter than a byte; a few may be added around the text. */
    jint most = size + 8;
    jint *ids = malloc(sizeof *ids * (size_t)most);
    jint n = ids ? llama_tokenize(model->vocab, text, size, ids, most, add_special, true) : -1;
    jintArray array = NULL;
    if (!ids)
        fail(env, OUT_OF_MEMORY, "no memory for the tokens of %d bytes", size);
    else if (n < 0)
        fail(env, IO_EXCEPTION, "a text of %d bytes has more tokens than bytes", size);
    else if ((array = (*env)->NewIntArray(env, n)))
        (*env)->SetIntArrayRegion(env, array, 0, n, ids);
    free(ids);
    return array;
}

/* Returns the ids of a text; add_special adds the special tokens with which the model's texts begin. */
JNIEXPORT jintArray JNICALL Java_edgespec_app_NativeModel_encode(
    JNIEnv *env, jclass type, jlong handle, jbyteArray text_bytes, jboolean add_special) {
    (void)type;
    struct native_model *model = opened(env, handle);
    jint size;
    char *text = model ? copy_of(env, text_bytes, &size) : NULL;
    jintArray ids = text ? tokenized(env, model, text, size, add_special) : NULL;
    free(text);
    return ids;
}

/* Returns the conversation in the model's template, which must be freed; NULL with an exception. A
   model without a template gets ChatML, as in Python. */
static char *rendered(JNIEnv *env, const struct native_model *model,
                      const struct llama_chat_message *messages, size_t n, jint *size) {
    const char *template = llama_model_chat_template(model->weights, NULL);
    if (!template)
        template = "chatml";
    *size = llama_chat_apply_template(template, messages, n, true, NULL, 0);
    if (*size < 0) {
        fail(env, IO_EXCEPTION, "the engine does not know its chat template; with a server the "
             "server writes the prompts, without one take another model");
        return NULL;
    }
    char *text = malloc((size_t)*size + 1);
    if (text)
        llama_chat_apply_template(template, messages, n, true, text, *size + 1);
    else
        fail(env, OUT_OF_MEMORY, "no memory for a prompt of %d bytes", *size);
    return text;
}

/* Returns true if the template has written the model's first token, which must not come twice. */
static bool begins_with_bos(const struct native_model *model, const char *text) {
    llama_token bos = llama_vocab_bos(model->vocab);
    const char *written = bos >= 0 ? llama_vocab_get_text(model->vocab, bos) : "";
    size_t size = strlen(written);
    return size && !strncmp(text, written, size);
}

/* Copies role, content, role, content, … into messages; returns false with an exception. The copies
   must be freed in both cases. */
static bool copy_messages(JNIEnv *env, jobjectArray texts, jint n,
                          struct llama_chat_message *messages) {
    for (jint i = 0; i < 2 * n; i++) {
        jint size;
        jbyteArray bytes = (*env)->GetObjectArrayElement(env, texts, i);
        char *text = copy_of(env, bytes, &size);
        (*env)->DeleteLocalRef(env, bytes);
        if (!text)
            return false;
        *(i % 2 ? &messages[i / 2].content : &messages[i / 2].role) = text;
    }
    return true;
}

/* Returns the template in the model's file; empty if there is none. */
JNIEXPORT jbyteArray JNICALL Java_edgespec_app_NativeModel_chatTemplate(JNIEnv *env, jclass type,
                                                                        jlong handle) {
    (void)type;
    struct native_model *model = opened(env, handle);
    if (!model)
        return NULL;
    const char *template = llama_model_chat_template(model->weights, NULL);
    return template ? new_bytes(env, template, (jint)strlen(template)) : new_bytes(env, "", 0);
}

/* Returns the ids of a conversation (role, content, …), up to where the assistant's answer begins. */
JNIEXPORT jintArray JNICALL Java_edgespec_app_NativeModel_encodeChat(
    JNIEnv *env, jclass type, jlong handle, jobjectArray texts) {
    (void)type;
    struct native_model *model = opened(env, handle);
    if (!model)
        return NULL;
    jint n = (*env)->GetArrayLength(env, texts) / 2;
    struct llama_chat_message *messages = calloc((size_t)n + 1, sizeof *messages);
    if (!messages) {
        fail(env, OUT_OF_MEMORY, "no memory for %d messages", n);
        return NULL;
    }
    jintArray ids = NULL;
    jint size;
    char *text = NULL;
    if (copy_messages(env, texts, n, messages))
        text = rendered(env, model, messages, (size_t)n, &size);
    if (text)
        ids = tokenized(env, model, text, size, !begins_with_bos(model, text));
    for (jint i = 0; i < n; i++) {
        free((void *)messages[i].role);
        free((void *)messages[i].content);
    }
    free(messages);
    free(text);
    return ids;
}

/* Returns the bytes that a token adds to a text; none for control tokens. */
JNIEXPORT jbyteArray JNICALL Java_edgespec_app_NativeModel_piece(JNIEnv *env, jclass type,
                                                                 jlong handle, jint id) {
    (void)type;
    struct native_model *model = opened(env, handle);
    if (!model || !in_vocabulary(env, model, id))
        return NULL;
    char small[256];
    jint size = llama_token_to_piece(model->vocab, id, small, sizeof small, 0, false);
    if (size >= 0)
        return new_bytes(env, small, size);
    char *large = malloc((size_t)-size);
    if (!large) {
        fail(env, OUT_OF_MEMORY, "no memory for a token of %d bytes", -size);
        return NULL;
    }
    size = llama_token_to_piece(model->vocab, id, large, -size, 0, false);
    jbyteArray bytes = new_bytes(env, large, size);
    free(large);
    return bytes;
}

JNIEXPORT jboolean JNICALL Java_edgespec_app_NativeModel_isEnd(JNIEnv *env, jclass type,
                                                               jlong handle, jint id) {
    (void)type;
    struct native_model *model = opened(env, handle);
    return model && in_vocabulary(env, model, id) && llama_vocab_is_eog(model->vocab, id);
}

/* Returns the input of the vocabulary hash (docs/concepts/protocol.md): every entry, after its size as
   a little-endian u32. */
JNIEXPORT jbyteArray JNICALL Java_edgespec_app_NativeModel_entries(JNIEnv *env, jclass type,
                                                                   jlong handle) {
    (void)type;
    struct native_model *model = opened(env, handle);
    if (!model)
        return NULL;
    size_t total = 0;
    for (int id = 0; id < model->vocab_size; id++)
        total += 4 + strlen(llama_vocab_get_text(model->vocab, id));
    char *bytes = malloc(total + 1);
    if (!bytes) {
        fail(env, OUT_OF_MEMORY, "no memory for a vocabulary of %d entries", model->vocab_size);
        return NULL;
    }
    char *end = bytes;
    for (int id = 0; id < model->vocab_size; id++) {
        const char *entry = llama_vocab_get_text(model->vocab, id);
        size_t size = strlen(entry);
        for (int shift = 0; shift < 32; shift += 8)
            *end++ = (char)(size >> shift);
        memcpy(end, entry, size);
        end += size;
    }
    jbyteArray array = new_bytes(env, bytes, (jint)total);
    free(bytes);
    return array;
}
