package edgespec;

import java.io.IOException;

/** A model and the exact tokens that its cache holds. */
final class ModelCache {
    /** Tokens that are read at once: between two such pieces somebody may want to stop. */
    static final int PIECE = 32;

    final Model model;
    private final IntList tokens = new IntList();

    ModelCache(Model model) throws IOException {
        this.model = model;
        model.truncate(0);
    }

    /** How many of the context's first tokens are in the cache. */
    int commonPrefix(int[] context) {
        return tokens.commonPrefix(context);
    }

    /** How many of the context's first tokens are in the cache; what else is there is dropped. */
    int align(int[] context) throws IOException {
        int n = tokens.commonPrefix(context);
        if (n < tokens.size()) {
            tokens.truncate(n);
            model.truncate(n);
        }
        return n;
    }

    /** Appends tokens; the likeliest id behind the last one. */
    int decode(int[] added) throws IOException {
        try {
            int[] likeliest = model.decode(added, 1);
            tokens.addAll(added);
            return likeliest[0];
        } catch (IOException error) {
            tokens.truncate(0);
            model.truncate(0); // whatever the engine kept of it is not known
            throw error;
        }
    }
}
