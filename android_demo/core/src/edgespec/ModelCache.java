package edgespec;

import java.io.IOException;
import java.util.Arrays;

/** A model together with the exact tokens that its cache holds. */
final class ModelCache {
    /** Most tokens of one evaluation, so that reading a long prompt can be stopped in between. */
    static final int CHUNK = 32;

    final Model model;
    private final IntList tokens = new IntList();

    ModelCache(Model model) throws IOException {
        this.model = model;
        model.truncate(0);
    }

    /** Returns how many of the context's first tokens are in the cache. */
    int commonPrefix(int[] context) { return tokens.commonPrefix(context); }

    /** Drops what is not in the context; returns how many of its first tokens are in the cache. */
    int align(int[] context) throws IOException {
        int n = tokens.commonPrefix(context);
        if (n < tokens.size()) {
            tokens.truncate(n);
            model.truncate(n);
        }
        return n;
    }

    /** Reads what is new in a context, in pieces; returns the likeliest token after it. */
    int likeliest(int[] context, StopFlag stop) throws IOException {
        int n = align(Arrays.copyOf(context, context.length - 1));
        int likeliest = 0;
        while (n < context.length) {
            stop.check();
            int end = Math.min(n + CHUNK, context.length);
            likeliest = decode(Arrays.copyOfRange(context, n, end));
            n = end;
        }
        return likeliest;
    }

    /** Appends tokens; returns the likeliest id after the last one. */
    int decode(int[] added) throws IOException {
        try {
            int[] likeliest = model.decode(added, 1);
            tokens.addAll(added);
            return likeliest[0];
        } catch (IOException error) {
            tokens.truncate(0);
            model.truncate(0); // nobody knows what the engine has kept of them
            throw error;
        }
    }
}
