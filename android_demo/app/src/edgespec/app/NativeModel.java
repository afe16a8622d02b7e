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
 * A GGUF file on the device, run by llama.cpp through jni/edgespec_jni.c. Calls of several threads
 * take turns, but {@link #cancel} comes through at once.
 *
 * <p>Ids outside the vocabulary are an IllegalArgumentException, calls after {@link #close} an
 * IllegalStateException.
 */
public final class NativeModel implements Model {
    /** Types of the cache, by their numbers in GGUF. Q8_0 needs flash attention. */
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

    /** Why no model can run on this device, as a sentence; null where one can. */
    public static String unavailable() {
        return UNAVAILABLE;
    }

    /**
     * Opens a GGUF file with the settings for phones: a cache of F16, flash attention, and half of
     * the processor's cores, at most four: the rest of a phone's are slow ones, which the others
     * would wait for.
     *
     * @param nCtx tokens that the cache holds
     * @throws IOException if it cannot be, with a sentence that says why
     */
    public static NativeModel open(File file, int nCtx) throws IOException {
        int cores = Runtime.getRuntime().availableProcessors();
        int nThreads = Math.max(1, Math.min(MOST_THREADS, cores / 2));
        return open(file, nCtx, nThreads, F16, F16, true);
    }

    /**
     * Opens a GGUF file.
     *
     * @param nCtx tokens that the cache holds
     * @param typeK {@link #F32}, {@link #F16} or {@link #Q8_0}, for the cache's keys
     * @param typeV the same for its values
     * @throws IOException if it cannot be, with a sentence that says why
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

    @Override
    public String name() {
        return name;
    }

    @Override
    public synchronized int vocabularySize() {
        return vocabularySize(handle);
    }

    @Override
    public synchronized byte[] vocabularyHash() {
        if (hash == null) {
            hash = Arrays.copyOf(sha256(entries(handle)), HASH_BYTES);
        }
        return hash.clone();
    }

    @Override
    public synchronized int contextSize() {
        return contextSize(handle);
    }

    @Override
    public synchronized int nPast() {
        return nPast(handle);
    }

    /** @throws InterruptedIOException after {@link #cancel}; the cache is as it was then */
    @Override
    public synchronized int[] decode(int[] tokens, int nRows) throws IOException {
        return decode(handle, tokens, nRows);
    }

    /**
     * Stops the decode that is under way, if any: it throws InterruptedIOException. For any thread;
     * a decode that begins later is not stopped.
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
     * The conversation under the model's own template, of those that llama.cpp knows.
     *
     * @throws IOException if the engine does not know the template
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

    /**
     * The tokens of a text, special ones that are written out included.
     *
     * @param addSpecial whether to put in front what the model wants at the beginning of a text
     */
    public synchronized int[] encode(String text, boolean addSpecial) throws IOException {
        return encode(handle, text.getBytes(UTF_8), addSpecial);
    }

    @Override
    public synchronized byte[] piece(int id) {
        return piece(handle, id);
    }

    @Override
    public synchronized boolean isEnd(int id) {
        return isEnd(handle, id);
    }

    /** Frees the weights and the cache; a decode under way is stopped and waited for. */
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
     * The system message that a template of the kind ChatML writes for conversations without one,
     * as SmolLM2's and Qwen2.5's do; null where there is none. llama.cpp knows templates by their
     * kind and leaves it out, the models were trained with it.
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
                magic[n] = (byte) in.read(); // -1 behind the end is not in the magic
            }
        }
        if (!Arrays.equals(magic, "GGUF".getBytes(UTF_8))) {
            throw new IOException(
                    file.getName() + " is not a GGUF, or damaged: it does not begin with the letters"
                            + " GGUF. Choose a file that ends in .gguf, or copy it again.");
        }
    }

    /** UTF-8 that a zero byte ends: one within would cut the text short. */
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

    /** What the vocabulary hash is taken of: each entry behind its size as a little-endian u32. */
    private static native byte[] entries(long handle);
}
