package edgespec;

import java.io.IOException;

/** Who has the target: a server, or this device. */
interface Verifier {
    /** Tokens of the target's context. */
    int contextSize();

    /** Most tokens of a draft; 0 where drafting is of no use. */
    int maxDraft();

    /**
     * A new request.
     *
     * @param maxTokens most tokens of the answer
     */
    void begin(int[] prompt, int maxTokens) throws IOException;

    /** Sends a draft, empty for a plain step. */
    void submit(int[] draft) throws IOException;

    /** Whether result would not wait. */
    boolean ready() throws IOException;

    /** The verdict of what was submitted. */
    Verdict result() throws IOException;

    /** What was emitted of it. */
    void accept(int[] tokens);

    /** The answer has ended: nothing more is asked for. */
    void rest();
}
