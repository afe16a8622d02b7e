package edgespec;

import java.io.IOException;
import java.util.Arrays;

/** Uses the model on the device as the target: greedy decoding without drafts. */
final class LocalVerifier implements Verifier {
    private final ModelCache cache;
    private final StopFlag stop;
    private final IntList context = new IntList();

    LocalVerifier(ModelCache cache, StopFlag stop) {
        this.cache = cache;
        this.stop = stop;
    }

    @Override
    public int contextSize() {
        return cache.model.contextSize();
    }

    @Override
    public int maxDraft() {
        return 0;
    }

    @Override
    public void begin(int[] prompt, int maxTokens) {
        context.truncate(0);
        context.addAll(prompt);
    }

    @Override
    public void submit(int[] draft) {
        // result does the work
    }

    @Override
    public boolean ready() {
        return true;
    }

    @Override
    public int[] result() throws IOException {
        int[] all = context.toArray();
        int n = cache.align(Arrays.copyOf(all, all.length - 1));
        int likeliest = 0;
        while (n < all.length) {
            stop.check();
            int end = Math.min(n + ModelCache.CHUNK, all.length);
            likeliest = cache.decode(Arrays.copyOfRange(all, n, end));
            n = end;
        }
        return new int[] {likeliest};
    }

    @Override
    public void accept(int[] tokens) {
        context.addAll(tokens);
    }

    @Override
    public void finish() {
        // no work continues in the background
    }
}
