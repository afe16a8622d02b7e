package android.widget;

import android.content.Context;
import android.text.Editable;
import android.text.InputType;
import java.awt.Color;
import java.awt.Graphics2D;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

public class EditText extends TextView {
    private CharSequence hint = "";
    private boolean password;
    private boolean oneLine;

    public EditText(Context context) {
        super(context);
        paddingX = dp(4);
        paddingY = dp(10);
    }

    private static final class Written implements Editable {
        private final String text;

        Written(String text) {
            this.text = text;
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

    @Override
    public Editable getText() {
        return new Written(text.toString());
    }

    public final void setHint(int id) {
        hint = getContext().getString(id);
    }

    public CharSequence getHint() {
        return hint;
    }

    public void setMaxLines(int lines) {
    }

    public void setInputType(int type) {
        password = (type & InputType.TYPE_TEXT_VARIATION_PASSWORD) != 0;
        oneLine = (type & InputType.TYPE_TEXT_FLAG_MULTI_LINE) == 0;
    }

    public boolean fakeIsPassword() {
        return password;
    }

    /** Text that the user writes may be longer than the field, which scrolls; a hint does not scroll. */
    @Override
    public List<String> fakeBroken() {
        return text.length() > 0 ? new ArrayList<String>() : super.fakeBroken();
    }

    @Override
    protected boolean isOneLine() {
        return oneLine;
    }

    @Override
    protected String shown() {
        if (text.length() == 0) {
            return hint.toString();
        }
        return password ? text.toString().replaceAll("(?s).", "•") : text.toString();
    }

    @Override
    protected int shade(int position) {
        return text.length() == 0 ? getContext().getResources().fakeColor("quiet") : color;
    }

    @Override
    public void fakeSave(Map<Integer, Object> into) {
        if (getId() != -1) {
            into.put(getId(), text.toString());
        }
    }

    @Override
    public void fakeRestore(Map<Integer, Object> from) {
        if (from.get(getId()) instanceof String) {
            setText((String) from.get(getId()));
        }
    }

    @Override
    public void fakeDraw(Graphics2D on) {
        super.fakeDraw(on);
        on.setColor(new Color(getContext().getResources().fakeColor("quiet")));
        on.fillRect(dp(4), height - dp(7), width - dp(8), dp(1));
    }
}
