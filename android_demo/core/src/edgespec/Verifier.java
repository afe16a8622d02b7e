package edgespec;

import java.io.IOException;

/** Owns the target, on a server or on this device, and has it check drafts. */
interface Verifier {
    /** Number of tokens that the target's context holds. */
    int contextSize();

    /** Most tokens of a draft; 0 where drafting does not pay. */
    int maxDraft();

    /**
     * Begins a request.
     *
     * @param prompt at most contextSize tokens
     * @param maxTokens most tokens of the answer
     */
    void begin(int[] prompt, int maxTokens);

    /** Sends a draft; an empty one asks for a plain step. */
    void submit(int[] draft) throws IOException;

    /** Returns true if result would not wait. */
    boolean ready() throws IOException;

    /** Waits for the verdict: the accepted tokens of the draft, and one of the target's own. */
    int[] result() throws IOException;

    /** Takes note of the emitted tokens of the last verdict, which the end of the answer may have cut. */
    void accept(int[] tokens);

    /** Tells the target that the answer has ended and no more tokens are wanted. */
    void finish();
}
