package edgespec;

import java.util.ArrayList;
import java.util.List;

/** A listener that records everything; tests override its methods to act on what comes. */
class Recorder implements Listener {
    final StringBuilder text = new StringBuilder();
    final List<String> pieces = new ArrayList<String>();
    final List<String> notes = new ArrayList<String>();
    final List<String> errors = new ArrayList<String>();
    final List<Stats> stats = new ArrayList<Stats>();
    int drafted;

    Stats last() { return stats.get(stats.size() - 1); }

    @Override
    public void onText(String more, boolean wasDrafted) {
        text.append(more);
        pieces.add(more);
        drafted += wasDrafted ? 1 : 0;
    }

    @Override
    public void onNote(String sentence) {
        notes.add(sentence);
    }

    @Override
    public void onStats(Stats found) {
        stats.add(found);
    }

    @Override
    public void onError(String sentence) {
        errors.add(sentence);
    }
}
