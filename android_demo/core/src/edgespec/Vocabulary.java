package edgespec;

/** Translates token ids into text. */
public interface Vocabulary {
    /** Returns the bytes that a token adds to the text; none for control tokens. */
    byte[] piece(int id);

    /** Returns true if the token ends an answer. */
    boolean isEnd(int id);
}
