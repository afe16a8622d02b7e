package android.text;

import android.text.style.ForegroundColorSpan;
import java.util.ArrayList;
import java.util.List;

public class SpannableString implements Spanned {
    private final String text;
    private final List<int[]> shades = new ArrayList<int[]>();

    public SpannableString(CharSequence text) {
        this.text = text.toString();
    }

    public void setSpan(Object what, int start, int end, int flags) {
        if (start < 0 || end < start || end > text.length()) {
            throw new IndexOutOfBoundsException(start + " to " + end + " of " + text.length());
        }
        shades.add(new int[] {start, end, ((ForegroundColorSpan) what).fakeColor});
    }

    /** Coloured ranges, each [start, end, colour]. */
    public List<int[]> fakeShades() {
        return shades;
    }

    @Override
    public int length() {
        return text.length();
    }

    @Override
    public char charAt(int index) {
        return text.charAt(index);
    }

    @Override
    public CharSequence subSequence(int start, int end) {
        return text.subSequence(start, end);
    }

    @Override
    public String toString() {
        return text;
    }
}
