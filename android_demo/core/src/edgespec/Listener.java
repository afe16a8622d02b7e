package edgespec;

/** Receives an answer while it is generated. All methods are called on the thread of Chat.send. */
public interface Listener {
    /**
     * Receives more text of the answer, in whole characters.
     *
     * @param drafted whether the token that completed it was drafted and accepted
     */
    void onText(String text, boolean drafted);

    /** Receives a sentence that the user should know and that does not end the answer: the server is
     * gone, or it is back. */
    void onNote(String sentence);

    /** Receives the statistics so far: at most five times a second, and at the end. */
    void onStats(Stats stats);

    /** Receives a sentence that says why the answer was broken off. The text before it stays. */
    void onError(String sentence);
}
