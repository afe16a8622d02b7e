package edgespec;

/** What token ids say. */
public interface Vocabulary {
    /** The bytes that a token adds to a text; none for control tokens. */
    byte[] piece(int id);

    /** Whether a token ends an answer. */
    boolean isEnd(int id);
}
