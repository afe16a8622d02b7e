package android.widget;

import android.content.Context;
import java.awt.BasicStroke;
import java.awt.Color;
import java.awt.FontMetrics;
import java.awt.Graphics2D;
import java.util.Map;

public class CheckBox extends Button {
    private boolean checked;

    public CheckBox(Context context) {
        super(context);
        paddingX = 0;
    }

    public void setChecked(boolean checked) {
        this.checked = checked;
    }

    public boolean isChecked() {
        return checked;
    }

    @Override
    public void fakeClick() {
        checked = !checked;
    }

    @Override
    public boolean fakeIsTouchable() {
        return true;
    }

    @Override
    protected int indent() {
        return dp(32);
    }

    @Override
    public void fakeSave(Map<Integer, Object> into) {
        if (getId() != -1) {
            into.put(getId(), checked);
        }
    }

    @Override
    public void fakeRestore(Map<Integer, Object> from) {
        if (from.get(getId()) instanceof Boolean) {
            checked = (Boolean) from.get(getId());
        }
    }

    @Override
    public void fakeDraw(Graphics2D on) {
        int y = height / 2 - dp(9);
        on.setColor(new Color(getContext().getResources().fakeColor(checked ? "accent" : "quiet")));
        on.setStroke(new BasicStroke(dp(2)));
        on.drawRoundRect(dp(5), y, dp(18), dp(18), dp(3), dp(3));
        if (checked) {
            on.drawPolyline(new int[] {dp(9), dp(13), dp(20)}, new int[] {y + dp(9), y + dp(13), y + dp(5)}, 3);
        }
        super.fakeDraw(on);
    }

    @Override
    protected void ground(Graphics2D on) {
    }

    @Override
    protected int centred(FontMetrics metrics, int[] line) {
        return 0;
    }
}
