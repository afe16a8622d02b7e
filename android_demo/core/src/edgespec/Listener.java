package edgespec;

/** Who hears of an answer while it is made. All methods are called on the thread of send. */
public interface Listener {
    /**
     * More of the answer, whole characters only.
     *
     * @param drafted whether the token that completed it was drafted and accepted
     */
    void onText(String text, boolean drafted);

    /** Something to know that does not end the answer, as a sentence: the server is gone, it is back. */
    void onNote(String sentence);

    /** The figures so far: after each step of a few tokens, and at the end. */
    void onStats(Stats stats);

    /** Why the answer ended before its end, as a sentence. What was said stays said. */
    void onError(String sentence);
}
