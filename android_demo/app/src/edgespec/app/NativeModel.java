package edgespec.app;

import edgespec.Message;
import edgespec.Model;
import java.io.File;
import java.io.FileInputStream;
import java.io.IOException;
import java.io.InterruptedIOException;
import java.nio.charset.Charset;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * Runs a GGUF file on the device with llama.cpp, through jni/edgespec_jni.c. Only one thread at a time
 * is inside, but {@link #cancel} works at once.
 *
 * <p>Methods throw IllegalArgumentException for ids outside the vocabulary, and IllegalStateException
 * after {@link #close}.
 */
public final class NativeModel implements Model {
    /** Types of the cache, with their numbers in GGUF. Q8_0 needs flash attention. */
    public static final int F32 = 0;
    public static final int F16 = 1;
    public static final int Q8_0 = 8;

    private static final Charset UTF_8 = Charset.forName("UTF-8");
    private static final int HASH_BYTES = 16;
    private static final int MOST_THREADS = 4;
    private static final Pattern DEFAULT_SYSTEM = Pattern.compile(
            "<\\|im_start\\|>system(?:\n|\\\\n)([^<>{}'\"]+)<\\|im_end\\|>");
    private static final String UNAVAILABLE = loadLibraries();

    private final String name;
    private final Object closing = new Object();
    private volatile long handle; // 0 after close; changes under `closing`
    private byte[] hash;

    private NativeModel(String name, long handle) {
        this.name = name;
        this.handle = handle;
    }

    /** Returns a sentence that says why no model can run on this device; null if one can. */
    public static String unavailable() { return UNAVAILABLE; }

    /**
     * Opens a GGUF file with settings for phones: a cache of F16, flash attention, and half of the
     * processor's cores but at most four. The other cores of a phone are slow, and the fast ones
     * would wait for them.
     *
     * @param nCtx number of tokens that the cache can hold
     * @throws IOException if the file cannot be opened, with a sentence that says why
     */
    public static NativeModel open(File file, int nCtx) throws IOException {
        int cores = Runtime.getRuntime().availableProcessors();
        int nThreads = Math.max(1, Math.min(MOST_THREADS, cores / 2));
        return open(file, nCtx, nThreads, F16, F16, true);
    }

    /**
     * Opens a GGUF file.
     *
     * @param nCtx number of tokens that the cache can hold
     * @param typeK {@link #F32}, {@link #F16} or {@link #Q8_0}, for the cache's keys
     * @param typeV the same for its values
     * @throws IOException if the file cannot be opened, with a sentence that says why
     */
    public static NativeModel open(
            File file, int nCtx, int nThreads, int typeK, int typeV, boolean flashAttention)
            throws IOException {
        if (UNAVAILABLE != null) {
            throw new IOException(UNAVAILABLE);
        }
        checkIsGguf(file);
        byte[] path = file.getPath().getBytes(UTF_8);
        try {
            long handle = open(path, nCtx, nThreads, typeK, typeV, flashAttention);
            return new NativeModel(file.getName().replaceFirst("\\.gguf$", ""), handle);
        } catch (IOException e) {
            throw new IOException(file.getName() + ": " + e.getMessage(), e);
        }
    }

    /** Returns the name of the file without its ending. */
    public String name() { return name; }

    public synchronized int vocabularySize() { return vocabularySize(handle); }

    @Override
    public synchronized byte[] vocabularyHash() {
        if (hash == null) {
            hash = Arrays.copyOf(sha256(entries(handle)), HASH_BYTES);
        }
        return hash.clone();
    }

    @Override
    public synchronized int contextSize() { return contextSize(handle); }

    /** Returns the number of tokens that the cache holds now. */
    public synchronized int nPast() { return nPast(handle); }

    /** @throws InterruptedIOException after {@link #cancel}; the cache is then as it was before */
    @Override
    public synchronized int[] decode(int[] tokens, int nRows) throws IOException {
        return decode(handle, tokens, nRows);
    }

    /**
     * Stops the running decode, if any: it throws InterruptedIOException. A decode that begins later
     * is not stopped. Any thread may call this method.
     */
    public void cancel() {
        synchronized (closing) {
            if (handle != 0) {
                cancel(handle);
            }
        }
    }

    @Override
    public synchronized void truncate(int nPast) throws IOException {
        truncate(handle, nPast);
    }

    /**
     * Returns the tokens of a conversation in the model's own template.
     *
     * @throws IOException if llama.cpp does not know the template
     */
    @Override
    public synchronized int[] encodeChat(List<Message> messages) throws IOException {
        List<Message> all = new ArrayList<Message>(messages);
        String system = defaultSystem(new String(chatTemplate(handle), UTF_8));
        if (system != null && !all.isEmpty() && !all.get(0).role.equals("system")) {
            all.add(0, new Message("system", system));
        }
        byte[][] texts = new byte[2 * all.size()][];
        for (int i = 0; i < all.size(); i++) {
            texts[2 * i] = cString(all.get(i).role);
            texts[2 * i + 1] = cString(all.get(i).content);
        }
        return encodeChat(handle, texts);
    }

    @Override
    public int[] encode(String text) throws IOException { return encode(text, false); }

    /**
     * Returns the tokens of a text; special tokens that are written out count as such.
     *
     * @param addSpecial whether to add the special tokens with which the model's texts begin
     */
    public synchronized int[] encode(String text, boolean addSpecial) throws IOException {
        return encode(handle, text.getBytes(UTF_8), addSpecial);
    }

    @Override
    public synchronized byte[] piece(int id) { return piece(handle, id); }

    @Override
    public synchronized boolean isEnd(int id) { return isEnd(handle, id); }

    /** Frees the weights and the cache, after stopping a running decode. */
    @Override
    public void close() {
        cancel();
        synchronized (this) {
            synchronized (closing) {
                long closed = handle;
                handle = 0;
                close(closed);
            }
        }
    }

    private static String loadLibraries() {
        try {
            System.loadLibrary("rnllama_v8"); // before the shim, which needs it
            System.loadLibrary("edgespec_jni");
            return null;
        } catch (UnsatisfiedLinkError e) {
            String processor = System.getProperty("os.arch");
            if ("aarch64".equals(processor)) {
                return "No model can run on this device: the app was built without its native"
                        + " library (build.sh --native bundles it). Use a server. (" + e.getMessage()
                        + ")";
            }
            return "No model can run on this device: that needs a 64-bit ARM processor, and this"
                    + " one is " + processor + ". Use a server.";
        }
    }

    /**
     * Returns the system message that a ChatML template adds to conversations without one, as those of
     * SmolLM2 and Qwen2.5 do; null if it adds none. The models were trained with that message, but
     * llama.cpp only recognizes the kind of the template and leaves the message out.
     */
    static String defaultSystem(String template) {
        Matcher found = DEFAULT_SYSTEM.matcher(template);
        return found.find() ? found.group(1) : null;
    }

    private static void checkIsGguf(File file) throws IOException {
        if (!file.isFile()) {
            throw new IOException("There is no file " + file + "; choose a GGUF file.");
        }
        byte[] magic = new byte[4];
        try (FileInputStream in = new FileInputStream(file)) {
            for (int n = 0; n < 4; n++) {
                magic[n] = (byte) in.read(); // -1 after the end, which is not in the magic
            }
        }
        if (!Arrays.equals(magic, "GGUF".getBytes(UTF_8))) {
            throw new IOException(
                    file.getName() + " is not a GGUF, or damaged: it does not begin with the letters"
                            + " GGUF. Choose a file that ends in .gguf, or copy it again.");
        }
    }

    /** Encodes a text for C, where a zero byte inside would end it: replaces zeros. */
    private static byte[] cString(String text) {
        return text.replace('\0', '\ufffd').getBytes(UTF_8);
    }

    private static byte[] sha256(byte[] bytes) {
        try {
            return MessageDigest.getInstance("SHA-256").digest(bytes);
        } catch (NoSuchAlgorithmException e) {
            throw new IllegalStateException("every Java has SHA-256", e);
        }
    }

    private static native long open(
            byte[] path, int nCtx, int nThreads, int typeK, int typeV, boolean flashAttention)
            throws IOException;

    private static native void close(long handle);

    private static native int vocabularySize(long handle);

    private static native int contextSize(long handle);

    private static native int nPast(long handle);

    private static native int[] decode(long handle, int[] tokens, int nRows) throws IOException;

    private static native void cancel(long handle);

    private static native void truncate(long handle, int nPast) throws IOException;

    private static native int[] encode(long handle, byte[] text, boolean addSpecial)
            throws IOException;

    private static native int[] encodeChat(long handle, byte[][] texts) throws IOException;

    private static native byte[] chatTemplate(long handle);

    private static native byte[] piece(long handle, int id);

    private static native boolean isEnd(long handle, int id);

    /** Returns the input of the vocabulary hash: each entry after its size as a little-endian u32. */
    private static native byte[] entries(long handle);
}
